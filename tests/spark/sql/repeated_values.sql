-- Spark computes what BETWEEN and NULLIF use more than once below the table of a statement.
CREATE NAMESPACE lance.db;
CREATE TABLE lance.db.t (id INT, a ARRAY<INT>, s STRING, d STRUCT<q: INT, w: ARRAY<INT>>);
INSERT INTO lance.db.t VALUES (1, array(1, 2), 'x', struct(1, array(1))), (2, array(), 'y', struct(2, array())),
  (3, NULL, 'z', NULL), (4, array(4), 'w', struct(4, array(4, 4)));
UPDATE lance.db.t SET s = CASE WHEN size(a) BETWEEN 1 AND 1 THEN 'one' ELSE nullif(upper(s), 'Z') END
  WHERE size(a) BETWEEN 0 AND 2 OR nullif(concat(s, '!'), 'z!') IS NULL;
SELECT id, s FROM lance.db.t ORDER BY id;
> 1 | X
> 2 | Y
> 3 | None
> 4 | one
UPDATE lance.db.t SET d.q = nullif(d.q + 1, 3), a = filter(a, v -> abs(v) BETWEEN 2 AND 4) WHERE size(d.w) NOT BETWEEN 2 AND 5;
SELECT id, d.q, a FROM lance.db.t ORDER BY id;
> 1 | 2 | [2]
> 2 | None | []
> 3 | None | None
> 4 | 4 | [4]
MERGE INTO lance.db.t USING (SELECT * FROM VALUES (1, 1, 3), (2, 5, 6), (9, 0, 0) AS v (k, lo, hi)) AS v
  ON t.id = v.k
  WHEN MATCHED AND size(t.a) BETWEEN v.lo AND v.hi THEN UPDATE SET s = concat('m', nullif(abs(v.lo), 0))
  WHEN MATCHED AND abs(v.hi) BETWEEN 6 AND 7 THEN DELETE
  WHEN NOT MATCHED AND v.lo + v.hi BETWEEN 0 AND 0 THEN INSERT (id, s) VALUES (v.k, nullif(upper('n'), 'N'))
  WHEN NOT MATCHED BY SOURCE AND nullif(length(t.s), 3) IS NULL THEN UPDATE SET s = coalesce(nullif(lower(s), 'one'), 'left');
SELECT id, s FROM lance.db.t ORDER BY id;
> 1 | m1
> 3 | left
> 4 | left
> 9 | None
DELETE FROM lance.db.t WHERE EXISTS (SELECT 1 FROM range(9) r WHERE r.id = t.id AND r.id + 1 BETWEEN t.id AND 3)
  AND size(a) BETWEEN (SELECT min(id) FROM range(3)) AND (SELECT max(id) FROM range(3));
SELECT id FROM lance.db.t ORDER BY id;
> 3
> 4
> 9
-- A view's own are columns that it computes.
CREATE TEMPORARY VIEW sized AS SELECT id, s, size(a) BETWEEN 0 AND 3 AS small FROM lance.db.t;
DELETE FROM sized WHERE small;
! cannot use small, which the view computes
UPDATE sized SET s = 'v' WHERE length(s) BETWEEN 4 AND 4;
SELECT id, s FROM lance.db.t ORDER BY id;
> 3 | v
> 4 | v
> 9 | None
