-- needs Spark 4.1: before, Spark does not tell catalogs of the columns to add, and the statement is refused.
CREATE TABLE lance.t AS SELECT id, id * 10 AS m FROM range(3);
MERGE WITH SCHEMA EVOLUTION INTO lance.t USING (SELECT id, 'x' AS fresh, id AS m FROM range(2, 4)) s ON t.id = s.id
  WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *;
SELECT * FROM lance.t ORDER BY id;
> 0 | 0 | None
> 1 | 10 | None
> 2 | 2 | x
> 3 | 3 | x
MERGE WITH SCHEMA EVOLUTION INTO lance.t USING (SELECT id FROM range(3, 5)) s ON t.id = s.id
  WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *;
SELECT * FROM lance.t WHERE id > 2 ORDER BY id;
> 3 | 3 | x
> 4 | None | None
MERGE INTO lance.t USING (SELECT id, 'y' AS more FROM range(3, 5)) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *;
! cannot be resolved
