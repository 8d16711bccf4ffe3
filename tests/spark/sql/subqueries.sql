-- DELETE, UPDATE and MERGE with subqueries.
CREATE NAMESPACE lance.db;
-- Subqueries that give a value, beside columns of the table or of the source.
CREATE TABLE lance.db.w AS SELECT id, 0L AS v FROM range(3);
CREATE TABLE lance.db.r AS SELECT 1L AS k, 50L AS x UNION ALL SELECT 1L, 60L UNION ALL SELECT 7L, 70L;
MERGE INTO lance.db.w t USING (SELECT id FROM range(3)) s ON t.id = s.id
  WHEN MATCHED AND t.id < (SELECT max(k) FROM lance.db.r WHERE r.k = t.id + 1 - 1)
    THEN DELETE
  WHEN MATCHED THEN UPDATE SET v = (SELECT max(x) FROM lance.db.r WHERE r.k = t.id);
SELECT * FROM lance.db.w ORDER BY id;
> 0 | None
> 1 | 60
> 2 | None
MERGE INTO lance.db.w t USING (SELECT 1L AS id UNION ALL SELECT 7L) s ON t.id = s.id
  WHEN MATCHED THEN UPDATE SET v = 1 + (SELECT sum(x) FROM lance.db.r WHERE r.k = s.id)
  WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, (SELECT max(x) FROM lance.db.r WHERE r.k = s.id))
  WHEN NOT MATCHED BY SOURCE AND 2 < (SELECT sum(k) FROM lance.db.r WHERE r.k > t.id)
    THEN UPDATE SET v = (SELECT count(*) FROM lance.db.r WHERE r.k > t.id);
SELECT * FROM lance.db.w ORDER BY id;
> 0 | 3
> 1 | 111
> 2 | 1
> 7 | 70
MERGE INTO lance.db.w t USING (SELECT 7L AS id, 1L AS k) s ON t.id = (SELECT max(r.k) FROM lance.db.r WHERE r.k = s.id)
  WHEN MATCHED THEN UPDATE SET v = -1;
SELECT v FROM lance.db.w WHERE id = 7;
> -1
MERGE INTO lance.db.w t USING (SELECT 7L AS id, 1L AS k UNION ALL SELECT 1L, 1L UNION ALL SELECT 9L, 1L) s ON t.id = s.id
  WHEN MATCHED AND 50 < (SELECT max(x) FROM lance.db.r WHERE r.k = s.k AND r.x > t.v)
    THEN UPDATE SET v = t.v + (SELECT min(x) FROM lance.db.r WHERE r.k = s.k AND r.x > t.v)
  WHEN MATCHED THEN DELETE
  WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, (SELECT count(*) FROM lance.db.r WHERE r.k = s.k))
  WHEN NOT MATCHED BY SOURCE AND t.id = 0 THEN UPDATE SET v = (SELECT count(*) FROM lance.db.r WHERE r.k > t.v);
SELECT * FROM lance.db.w ORDER BY id;
> 0 | 1
> 2 | 1
> 7 | 49
> 9 | 2
MERGE INTO lance.db.w t USING (SELECT 7L AS id) s
  ON t.v < (SELECT max(x) FROM lance.db.r WHERE r.k = s.id AND r.x > t.v)
  WHEN MATCHED THEN DELETE;
! the condition of MERGE takes no subquery
MERGE INTO lance.db.w t USING (SELECT 7L AS id) s ON EXISTS (SELECT 1 FROM lance.db.r WHERE r.k = s.id AND r.x > t.v)
  WHEN MATCHED THEN DELETE;
! the condition of MERGE takes no subquery that names columns of both
MERGE INTO lance.db.w t USING (SELECT 7L AS id) s ON t.id = s.id AND NOT t.id IN (SELECT k FROM lance.db.r WHERE r.x < s.id)
  WHEN MATCHED THEN DELETE;
! the condition of MERGE takes no subquery that names columns of both
MERGE INTO lance.db.w t USING (SELECT 7L AS id UNION ALL SELECT 9L) s
  ON t.id = s.id AND EXISTS (SELECT 1 FROM lance.db.r WHERE r.k = s.id) AND t.v IN (SELECT x - 21 FROM lance.db.r)
  WHEN MATCHED AND EXISTS (SELECT 1 FROM lance.db.r WHERE r.k = s.id AND r.x > t.v) THEN UPDATE SET v = -7
  WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, -9);
SELECT * FROM lance.db.w ORDER BY id, v;
> 0 | 1
> 2 | 1
> 7 | -7
> 9 | -9
> 9 | 2
