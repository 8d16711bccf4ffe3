-- A search for each row of another relation.
CREATE TABLE lance.s (id BIGINT, t STRING, v ARRAY<FLOAT>)
  TBLPROPERTIES ('v.arrow.fixed-size-list.size' = '2');
INSERT INTO lance.s SELECT id, if(id % 4 = 0, 'red fox', 'blue sea'), array(float(id), float(id % 3)) FROM range(40);
SELECT r.id, n.id FROM range(2) r, LATERAL vector_search('lance.s', 'v', array(r.id + 0.4, 1), 2) n ORDER BY r.id, n._distance;
> 0 | 1
> 0 | 0
> 1 | 1
> 1 | 2
SELECT q.n, s.id FROM VALUES (1, array(7.2, 1)), (2, NULL), (3, array(7.2, 1)) q(n, v)
  LEFT JOIN LATERAL vector_search('lance.s', vector => q.v, column => 'v', k => 1) s ORDER BY n;
> 1 | 7
> 2 | None
> 3 | 7
SELECT q.n, s.id FROM VALUES (1, array(7.2, 1)), (2, NULL) q(n, v)
  LEFT JOIN LATERAL (SELECT id FROM vector_search('lance.s', 'v', q.v, 2) WHERE id > 7) s ORDER BY n;
> 1 | 8
> 2 | None
SELECT q.n, count(*), min(s.id) FROM VALUES (1, array(7.2, 1)), (1, array(7.2, 1)), (2, NULL) q(n, v),
  LATERAL vector_search('lance.s', 'v', q.v, 3) s GROUP BY q.n;
> 1 | 6 | 6
SELECT count(*) FROM lance.s q, LATERAL vector_search('lance.s', 'v', q.v, 4, map('filter', 'id >= 20')) s
  WHERE q.id < 10 AND s.id < 24;
> 40
SELECT q.id, q.t, x.id FROM lance.s q JOIN LATERAL (SELECT id FROM vector_search('s', 'v', q.v, 2) WHERE id <> q.id) x
  WHERE q.id IN (7, 30) ORDER BY q.id;
> 7 | blue sea | 6
> 30 | blue sea | 31
SELECT id FROM vector_search('lance.s', 'v', (SELECT v FROM lance.s WHERE id = 9), 2);
> 9
> 10
SELECT r.id, (SELECT max(s.id) FROM vector_search('lance.s', 'v', array(r.id, 0), 2) s) FROM range(3) r ORDER BY 1;
> 0 | 1
> 1 | 1
> 2 | 3
EXPLAIN SELECT s.id FROM lance.s q, LATERAL vector_search('lance.s', 'v', q.v, 2) s;
~ LanceSearchEach [VectorSearch v k=2 metric=l2 without an index]
SELECT * FROM range(2) r, LATERAL vector_search('lance.s', 'v', array(r.id), 3);
! a query vector has 1 values, but the table's vectors have 2
SELECT * FROM range(2) r, LATERAL vector_search('lance.s', 'v', array('a', cast(r.id AS STRING)), 3);
! an array of numbers
SELECT * FROM range(2) r, LATERAL vector_search('lance.s', 'v', array(r.id, 1), 3, map('ef', '9'));
! no option 'ef'
SELECT * FROM range(2) r, LATERAL vector_search('lance.s', 'v', array(r.id, 1), r.id);
! takes constants
SELECT q.w, count(*), min(s.id), count(_score) FROM VALUES ('fox'), ('sea'), (NULL), ('none of it') q(w),
  LATERAL text_search('lance.s', 't', q.w, 100) s GROUP BY q.w ORDER BY q.w;
> fox | 10 | 0 | 10
> sea | 30 | 1 | 30
SELECT q.w, s.id FROM VALUES ('fox'), (NULL), ('sea') q(w)
  LEFT JOIN LATERAL text_search('lance.s', column => 't', query => q.w, k => 100, options => map('filter', 'id > 37')) s
  ORDER BY q.w, s.id;
> None | None
> fox | None
> sea | 38
> sea | 39
SELECT q.id, s.id FROM lance.s q, LATERAL text_search('lance.s', 't', concat('"', q.t, '"'), 50) s
  WHERE q.id < 3 AND s.id < 4 ORDER BY q.id, s.id;
> 0 | 0
> 1 | 1
> 1 | 2
> 1 | 3
> 2 | 1
> 2 | 2
> 2 | 3
SELECT id FROM text_search('lance.s', 't', (SELECT t FROM lance.s WHERE id = 8), 50, map('operator', 'and')) WHERE id < 6
  ORDER BY id;
> 0
> 4
SELECT q.n, s.id, s._distance, s._score IS NULL FROM VALUES (1, array(39, 0), 'fox'), (2, array(36, 0), 'fox'), (3, NULL, 'fox'),
  (4, array(0, 0), NULL) q(n, v, w), LATERAL hybrid_search('lance.s', 'v', q.v, 't', q.w, 1, map('text_weight', '0')) s ORDER BY q.n;
> 1 | 39 | 0.0 | True
> 2 | 36 | 0.0 | False
SELECT q.w, count(*), count(s._relevance_score) FROM VALUES ('fox'), ('sea') q(w),
  LATERAL hybrid_search('lance.s', 'v', array(0, 0), 't', q.w, 7) s GROUP BY q.w ORDER BY q.w;
> fox | 7 | 7
> sea | 7 | 7
SELECT r.id, s.id FROM range(2) r, LATERAL hybrid_search('lance.s', 'v', array(r.id + 20, r.id), 't', 'fox', 1, map('text_weight', '0')) s
  ORDER BY r.id;
> 0 | 21
> 1 | 21
EXPLAIN SELECT s.id FROM lance.s q, LATERAL text_search('lance.s', 't', q.t, 2) s;
~ LanceSearchEach [TextSearch t without an index k=2]
SELECT * FROM range(2) r, LATERAL text_search('lance.s', 't', r.id, 3);
! the query of text_search is a text, not BIGINT
SELECT * FROM range(2) r, LATERAL text_search('lance.s', 't', cast(r.id AS STRING), 3, map('nprobes', '9'));
! no option 'nprobes'
SELECT * FROM range(2) r, LATERAL hybrid_search('lance.s', 'v', array(r.id), 't', 'fox', 3);
! does not match index column size 2
SELECT * FROM range(2) r, LATERAL text_search('lance.s', cast(r.id AS STRING), 'fox', 3);
! only a vector or a query
