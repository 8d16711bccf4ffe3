-- Searches in FROM, and distances of vectors.
CREATE TABLE lance.s (id BIGINT, t STRING, v ARRAY<FLOAT>)
  TBLPROPERTIES ('v.arrow.fixed-size-list.size' = '2');
INSERT INTO lance.s SELECT id, if(id % 4 = 0, 'red fox', 'blue sea'), array(float(id), float(id % 3)) FROM range(40);
SELECT id, _distance FROM vector_search('lance.s', 'v', array(7, 1), 3);
> 7 | 0.0
> 6 | 2.0
> 8 | 2.0
SELECT id FROM vector_search('s', 'v', array(7, 1), 3, map('metric', 'l2', 'filter', 'id > 20')) ORDER BY id;
> 21
> 22
> 23
SELECT id FROM vector_search('lance.s', 'v', array(7, 1), 3) WHERE id > 6 ORDER BY id;
> 7
> 8
SELECT n.id, s.t FROM vector_search('lance.s', 'v', array(7.2, 1.0), 2) n JOIN lance.s s ON n.id = s.id ORDER BY n.id;
> 7 | blue sea
> 8 | red fox
SELECT count(*) FROM vector_search('lance.s', column => 'v', vector => array(7, 1), k => 5);
> 5
SELECT max(id), count(*) FROM text_search('lance.s', 't', 'fox', 100);
> 36 | 10
SELECT count(*), count(_distance), count(_score) FROM hybrid_search('lance.s', 'v', array(0, 0), 't', 'fox', 10);
> 10 | 10 | 10
SELECT id FROM hybrid_search('lance.s', 'v', array(39, 0), 't', 'fox', 1, map('text_weight', '0'));
> 39
SELECT count(*) FROM vector_search('lance.nope', 'v', array(7, 1), 3);
! there is no table nope in
SELECT count(*) FROM vector_search('lance.s', 'v', array(7), 3);
! the query has 1 values, which does not match index column size 2 of 'v'
SELECT count(*) FROM vector_search('lance.s', 'v', array(7, 1), 3, map('far', '1'));
! no option 'far'
SELECT count(*) FROM vector_search('lance.s', 'v', array(7, 1));
! missing: k
SELECT count(*) FROM vector_search('lance.s', 'id', array(7, 1), 1);
! holds no vectors
SELECT count(*) FROM text_search('lance.s', 'id', 'fox', 3);
! holds no text
SELECT count(*) FROM vector_search('not a name', 'v', array(7, 1), 3);
! the name or the path of a table
CALL lance.system.create_index(table => 's', column => 'v', type => 'IVF_FLAT', metric => 'cosine', partitions => 2);
EXPLAIN SELECT * FROM vector_search('lance.s', 'v', array(7, 1), 3);
~ VectorSearch v k=3 metric=cosine by index v_idx (IVF_FLAT)
EXPLAIN SELECT * FROM vector_search('lance.s', 'v', array(7, 1), 3, map('metric', 'l2'));
~ VectorSearch v k=3 metric=l2 without an index
SELECT count(*) FROM vector_search('lance.s', 'v', array(7, 1), 3, map('version', '1'));
> 0
SELECT l2_distance(array(1, 2), array(3.0, 4.5)), dot_distance(array(1F, 2F), array(2D, 2D));
> 10.25 | -5.0
SELECT cosine_distance(array(1, 0), array(0, 5)), cosine_distance(array(0, 0), array(1, 1));
> 1.0 | 1.0
SELECT l2_distance(array(1, NULL), array(1, 2)), l2_distance(CAST(NULL AS ARRAY<INT>), array(1));
> None | None
SELECT id, l2_distance(v, array(7, 1)) FROM lance.s ORDER BY l2_distance(v, array(7, 1)), id LIMIT 2;
> 7 | 0.0
> 6 | 2.0
SET spark.lance.approximateSearch=true;
EXPLAIN SELECT id FROM lance.s ORDER BY cosine_distance(v, array(7, 1)) LIMIT 3;
~ VectorSearch v k=3 metric=cosine by index v_idx (IVF_FLAT)
SELECT id FROM (SELECT id, cosine_distance(v, array(37, 1)) AS d FROM lance.s) ORDER BY d LIMIT 1;
> 37
SELECT id FROM lance.s WHERE id > 30 ORDER BY l2_distance(array(7, 1), v) LIMIT 1;
> 31
SET spark.lance.approximateSearch=false;
SELECT l2_distance(array(1), array(1, 2));
! do not match
SELECT dot_distance('a', array(1));
! two arrays of numbers, not STRING
SELECT l2_distance(array(1));
! two arrays of numbers
DESCRIBE FUNCTION vector_search;
~ Usage: vector_search(table, column, vector, k[, options])
