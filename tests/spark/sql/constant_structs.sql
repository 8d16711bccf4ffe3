-- Structs of constants among the values that a statement sets: Spark makes one constant of them early.
CREATE NAMESPACE lance.db;
CREATE TABLE lance.db.t (id INT, st STRUCT<x: INT, y: STRING>);
INSERT INTO lance.db.t VALUES (1, struct(1, 'a')), (2, struct(2, 'b')), (3, NULL);
CREATE TEMPORARY VIEW r AS SELECT * FROM VALUES (1, 1), (2, 0), (3, 5) AS r (k, lo);
UPDATE lance.db.t AS t SET t.st = CASE WHEN t.st.x BETWEEN 1 AND 1 THEN named_struct('x', 7, 'y', 'Y')
  WHEN (SELECT max(lo) FROM r WHERE r.k = t.id) = 0 THEN named_struct('x', 8, 'y', 'Z') END WHERE abs(t.id) BETWEEN 1 AND 2;
UPDATE lance.db.t SET st = coalesce(st, named_struct('x', 9, 'y', 'W')), id = id + 0;
SELECT id, st.x, st.y FROM lance.db.t ORDER BY id;
> 1 | 7 | Y
> 2 | 8 | Z
> 3 | 9 | W
UPDATE lance.db.t SET st = if(EXISTS (SELECT 1 FROM r WHERE r.k = t.id AND r.lo > 4), named_struct('x', 5, 'y', 'V'), st);
UPDATE lance.db.t SET st = if(id IN (SELECT k FROM r WHERE r.lo < t.st.x - 7), named_struct('x', 6, 'y', 'U'), st);
CREATE TEMPORARY VIEW v AS SELECT id AS number, st AS pair FROM lance.db.t;
UPDATE v SET pair = if(number = 1, named_struct('x', 4, 'y', 'T'), pair);
SELECT id, st.x, st.y FROM lance.db.t ORDER BY id;
> 1 | 4 | T
> 2 | 6 | U
> 3 | 5 | V
MERGE INTO lance.db.t USING (SELECT k + 1 AS n, lo AS w FROM r) AS s ON t.id = s.n
  WHEN MATCHED AND s.w = 0 THEN DELETE
  WHEN MATCHED THEN UPDATE SET st = CASE WHEN s.w = 1 AND t.st.y = 'U' THEN named_struct('x', 70, 'y', 'M') ELSE t.st END
  WHEN NOT MATCHED THEN INSERT (id, st) VALUES (s.n, if(s.w = 5, named_struct('x', 71, 'y', 'N'), NULL))
  WHEN NOT MATCHED BY SOURCE THEN UPDATE SET st = if(t.id = (SELECT min(k) FROM r), named_struct('x', 72, 'y', 'B'), t.st);
SELECT id, st.x, st.y FROM lance.db.t ORDER BY id;
> 1 | 72 | B
> 2 | 70 | M
> 4 | 71 | N
-- The fields are those of the same names, in any order.
UPDATE lance.db.t SET st = CASE WHEN id = 1 THEN named_struct('y', '8', 'x', 1) WHEN id = 2 THEN named_struct('y', 'R', 'x', 2) END;
SELECT id, st.x, st.y FROM lance.db.t ORDER BY id;
> 1 | 1 | 8
> 2 | 2 | R
> 4 | None | None
