-- DELETE, UPDATE and MERGE.
CREATE NAMESPACE lance.db;
CREATE TABLE lance.db.t AS
  SELECT id, id % 3 AS m, named_struct('a', id, 'b', cast(id AS STRING)) AS d, array(id, id + 1) AS xs FROM range(10);
CALL lance.system.last_change();
DELETE FROM lance.db.t WHERE id IN (SELECT id FROM range(2));
CALL lance.system.verify('db.t');
DELETE FROM lance.db.t AS t WHERE EXISTS (SELECT 1 FROM range(20) r WHERE r.id = t.id + 10 AND r.id = 14);
DELETE FROM lance.db.t WHERE id > (SELECT avg(id) FROM lance.db.t) + 2;
SELECT id FROM lance.db.t ORDER BY id;
> 2
> 3
> 5
> 6
> 7
SELECT operation FROM lance.db.t.history WHERE version > 1 ORDER BY version;
> DELETE
> DELETE
> DELETE
UPDATE lance.db.t AS x SET d.a = x.d.a * 2, m = DEFAULT WHERE x.d.b = '7';
UPDATE lance.db.t SET xs = transform(xs, x -> x + id), d = named_struct('b', 8, 'a', 0) WHERE id = 3;
UPDATE lance.db.t SET m = (SELECT max(id) FROM range(50)) WHERE _rowid IS NOT NULL AND id < 4;
UPDATE lance.db.t SET m = (SELECT count(*) FROM range(9) r WHERE r.id > t.id) WHERE m < 49
  AND id > (SELECT min(r.id) FROM range(4, 9) r WHERE r.id % 2 = t.id % 2);
SELECT id, m, d.a, d.b, xs FROM lance.db.t ORDER BY id;
> 2 | 49 | 2 | 2 | [2, 3]
> 3 | 49 | 0 | 8 | [6, 7]
> 5 | 2 | 5 | 5 | [5, 6]
> 6 | 2 | 6 | 6 | [6, 7]
> 7 | None | 14 | 7 | [7, 8]
MERGE INTO lance.db.t AS t
  USING (SELECT 5L AS id, 55 AS m UNION ALL SELECT 77L, 7) AS s ON t.id = s.id
  WHEN MATCHED AND s.m > 100 THEN DELETE
  WHEN MATCHED THEN UPDATE SET t.m = s.m + t.m, d.b = concat('was ', t.d.b)
  WHEN NOT MATCHED AND s.id > 70 THEN INSERT (id, m, d) VALUES (s.id, s.m, named_struct('b', 4, 'a', 1))
  WHEN NOT MATCHED BY SOURCE AND t.id > 6 THEN DELETE
  WHEN NOT MATCHED BY SOURCE AND t.id = 6 THEN UPDATE SET m = -1;
SELECT id, m, d.b FROM lance.db.t ORDER BY id;
> 2 | 49 | 2
> 3 | 49 | 8
> 5 | 57 | was 5
> 6 | -1 | 6
> 77 | 7 | 4
MERGE INTO lance.db.t USING (SELECT * FROM lance.db.t VERSION AS OF 1) AS old ON t.id = old.id
  WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *;
SELECT count(*), sum(id), sum(m) FROM lance.db.t;
> 11 | 122 | 16
-- What fails leaves the table as it is.
MERGE INTO lance.db.t USING (SELECT explode(array(1L, 1L)) AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET m = 9;
! Make the source's keys unique
UPDATE lance.db.t SET id = d.b;
! CANNOT_SAFELY_CAST
UPDATE lance.db.t SET m = 3000000000 * 3000000000 * id;
! overflow
UPDATE lance.db.t SET m = 1, m = 2;
! m is set twice
UPDATE lance.db.t SET nope = 1;
! nope
DELETE FROM lance.db.t.history;
! cannot be changed
UPDATE lance.db.nope SET m = 1;
! TABLE_OR_VIEW_NOT_FOUND
SELECT version FROM lance.db.t.history ORDER BY version DESC LIMIT 1;
> 10
-- Views, paths, branches, caches.
CREATE TEMPORARY VIEW named AS SELECT id AS key, m FROM lance.db.t;
CREATE TEMPORARY VIEW some AS SELECT * FROM lance.db.t WHERE id > 3;
UPDATE named SET m = 100 WHERE key = 9;
SELECT m FROM named WHERE key = 9;
> 100
DELETE FROM some;
! name the table itself
CREATE TABLE lance.`{root}/outside` AS SELECT id, id * 2 AS m FROM range(4);
CREATE TEMPORARY VIEW v USING lance OPTIONS (path '{root}/outside');
SELECT sum(m) FROM v;
> 12
UPDATE v SET m = 0 WHERE id = 3;
SELECT sum(m) FROM v;
> 6
DELETE FROM lance.`{root}/outside` WHERE id NOT IN (SELECT id FROM range(3));
MERGE INTO v USING (SELECT id, -1L AS m FROM range(2, 5)) s ON v.id = s.id
  WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *;
SELECT * FROM lance.`{root}/outside` ORDER BY id;
> 0 | 0
> 1 | 2
> 2 | -1
> 3 | -1
> 4 | -1
MERGE WITH SCHEMA EVOLUTION INTO v USING (SELECT 1L AS id, 2L AS m) s ON v.id = s.id WHEN MATCHED THEN UPDATE SET *;
! needs a table of a catalog
CREATE TEMPORARY VIEW old USING lance OPTIONS (path '{root}/outside', version '1');
DELETE FROM old;
! option 'version'
CALL lance.system.create_branch('db.t', 'dev');
UPDATE lance.db.`t@dev` SET m = 7;
SELECT DISTINCT m FROM lance.db.`t@dev`;
> 7
CACHE TABLE lance.db.t;
SELECT sum(m) FROM lance.db.t;
> 116
UPDATE lance.db.t SET m = 5 WHERE id = 0;
SELECT sum(m) FROM lance.db.t;
> 121
UNCACHE TABLE lance.db.t;
UNCACHE TABLE IF EXISTS lance.db.t;
UNCACHE TABLE IF EXISTS lance.db.nope;
UNCACHE TABLE IF EXISTS lance.nope;
UNCACHE TABLE lance.nope;
! TABLE_OR_VIEW_NOT_FOUND
CREATE TEMPORARY VIEW more AS SELECT id, id * 2 AS twice, 'z' AS z FROM range(5);
CALL lance.system.add_columns_from('db.t', 'more', 'id', columns => 'twice');
SELECT id, twice FROM lance.db.t WHERE id IN (4, 5) ORDER BY id;
> 4 | 8
> 5 | None
CALL lance.system.add_columns_from('db.t', source => 'nope', keys => 'id');
! TABLE_OR_VIEW_NOT_FOUND
DELETE FROM lance.db.t;
SELECT count(*) FROM lance.db.t;
> 0
CREATE TABLE lance.db.n (id BIGINT NOT NULL, s STRING);
INSERT INTO lance.db.n VALUES (1, 'a');
UPDATE lance.db.n SET id = NULL;
! NOT_NULL_ASSERT_VIOLATION
MERGE INTO lance.db.n USING (SELECT 2L AS id) s ON n.id = s.id WHEN NOT MATCHED THEN INSERT (s) VALUES ('q');
! not nullable
SELECT * FROM lance.db.n;
> 1 | a
SELECT count(*) FROM lance.db.n TIMESTAMP AS OF current_timestamp();
> 1
SELECT count(*) FROM IDENTIFIER('lance.' || 'db.n');
> 1
