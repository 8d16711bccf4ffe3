-- Tables by name: made, filled, read, replaced, renamed, dropped.
CREATE NAMESPACE lance.db COMMENT 'first';
SHOW NAMESPACES IN lance;
> db
CREATE NAMESPACE lance.db;
! SCHEMA_ALREADY_EXISTS
CREATE NAMESPACE IF NOT EXISTS lance.db;
CREATE TABLE lance.db.t (id BIGINT NOT NULL COMMENT 'key', name STRING, v ARRAY<FLOAT>)
  COMMENT 'a table' TBLPROPERTIES ('v.arrow.fixed-size-list.size' = '2', 'x.y' = '1');
SELECT * FROM lance.db.t;
INSERT INTO lance.db.t VALUES (1, 'a', array(1.0f, 2.0f)), (2, 'b', array(3.0f, 4.0f)), (3, NULL, NULL);
SELECT id, name, v[1] FROM lance.db.t ORDER BY id;
> 1 | a | 2.0
> 2 | b | 4.0
> 3 | None | None
SELECT count(*) FROM lance.db.t;
> 3
SELECT name FROM lance.db.t WHERE id > 1 AND name IS NOT NULL;
> b
SELECT count(*) FROM lance.db.t WHERE _rowid IS NOT NULL AND _fragid >= 0 AND _rowaddr >= 0;
> 3
INSERT INTO lance.db.t VALUES (NULL, 'x', NULL);
! null
CREATE TABLE lance.db.t (a INT);
! TABLE_OR_VIEW_ALREADY_EXISTS
CREATE TABLE IF NOT EXISTS lance.db.t (a INT);
SELECT * FROM lance.db.nope;
! TABLE_OR_VIEW_NOT_FOUND
DROP TABLE IF EXISTS lance.db.nope;
CREATE TABLE lance.db.u AS SELECT id, name FROM lance.db.t;
CREATE OR REPLACE TABLE lance.db.u AS SELECT id * 10 AS ten FROM lance.db.u;
SELECT * FROM lance.db.u ORDER BY ten;
> 10
> 20
> 30
SELECT name FROM lance.db.u VERSION AS OF 1 WHERE id = 2;
> b
SELECT count(*) FROM lance.db.u TIMESTAMP AS OF '2100-01-01';
> 3
SELECT * FROM lance.db.u VERSION AS OF 99;
! 99
INSERT OVERWRITE lance.db.u SELECT 77;
SELECT * FROM lance.db.u;
> 77
SELECT version FROM lance.db.u.history ORDER BY version;
> 1
> 2
> 3
INSERT INTO lance.db.u.history SELECT * FROM lance.db.u.history;
! append
ALTER TABLE lance.db.u RENAME TO uu;
ALTER TABLE lance.db.uu RENAME TO lance.db.`a b.c`;
SHOW TABLES IN lance.db;
> db | a b.c | False
> db | t | False
SELECT * FROM lance.db.`a b.c`;
> 77
CREATE TABLE lance.db.p (a INT) PARTITIONED BY (b);
! column b
CREATE TABLE lance.db.p (a INT) LOCATION '/tmp/elsewhere';
! LOCATION
CREATE TABLE lance.nope.p (a INT);
! SCHEMA_NOT_FOUND
DROP NAMESPACE lance.db;
! SCHEMA_NOT_EMPTY
DROP TABLE lance.db.`a b.c`;
TRUNCATE TABLE lance.db.t;
SELECT count(*) FROM lance.db.t;
> 0
DROP NAMESPACE lance.db CASCADE;
SHOW NAMESPACES IN lance;
-- Where the catalog is called like the format, what is missing is a table, and no file of the format.
SELECT * FROM lance.nope;
! TABLE_OR_VIEW_NOT_FOUND
INSERT INTO lance.nope VALUES (1);
! `lance`.`nope`
DROP TABLE IF EXISTS lance.nope;
CREATE TABLE lance.p (a INT) USING parquet;
! write USING lance
CREATE TABLE lance.p USING parquet AS SELECT 1 AS a;
! write USING lance
SHOW TABLES IN lance;
CREATE TABLE IF NOT EXISTS lance.p (a INT) USING lance;
INSERT INTO lance.p VALUES (1);
-- Options that mean nothing, or lead elsewhere, are refused.
SELECT * FROM lance.p WITH (nope = 1);
! unknown option
INSERT INTO lance.p WITH (nope = 1) VALUES (2);
! unknown option
SELECT * FROM lance.p WITH (path = '{root}/other');
! leads to another table
INSERT INTO lance.p WITH (path = '{root}/other') VALUES (2);
! leads to another table
SELECT a FROM lance.p WITH (batch_size = 10);
> 1
ALTER TABLE lance.p SET TBLPROPERTIES ('primary_key' = 'a');
! stays
SHOW PARTITIONS lance.p;
! declares no partitions
-- Names of tables: folders can have them, or they are refused.
CREATE TABLE lance.`a"b` (a INT);
! cannot be used
CREATE TABLE lance.`a/b` (a INT);
! cannot be used
CREATE TABLE lance.`a\b` (a INT);
! cannot be used
CREATE TABLE lance.`a$b` (a INT);
! cannot be used
CREATE TABLE lance.` a` (a INT);
! cannot be used
CREATE TABLE lance.`..` (a INT);
! cannot be used
CREATE NAMESPACE lance.`a"b`;
! cannot be used
ALTER TABLE lance.p RENAME TO `a"b`;
! cannot be used
ALTER TABLE lance.p RENAME TO `é.表 b`;
INSERT INTO lance.`é.表 b` VALUES (2);
UPDATE lance.`é.表 b` SET a = a + 1 WHERE a = 2;
DELETE FROM lance.`é.表 b` WHERE a = 1;
CALL lance.system.compact('`é.表 b`');
SELECT a FROM lance.`é.表 b`;
> 3
SELECT count(*) FROM lance.`é.表 b`.history WHERE operation = 'DELETE';
> 1
DROP TABLE lance.`é.表 b`;
-- Names of columns: all but those with a dot, which Lance reserves.
CREATE TABLE lance.c (`a.b` INT);
! has a dot
CREATE TABLE lance.c (`c"d` INT, `e f` INT, `g/h` STRING, `ü` INT, `x$y` INT, `bt``q` INT, `b\s` INT);
INSERT INTO lance.c VALUES (2, 3, '4', 5, 6, 7, 8);
UPDATE lance.c SET `c"d` = 9, `b\s` = 3 WHERE `bt``q` = 7 AND `c"d` = 2 AND `b\s` = 8;
MERGE INTO lance.c t USING (SELECT 9 AS k) s ON t.`c"d` = s.k WHEN MATCHED THEN UPDATE SET `bt``q` = t.`e f` + 1;
ALTER TABLE lance.c RENAME COLUMN `c"d` TO `d d`;
ALTER TABLE lance.c RENAME COLUMN `d d` TO `d.d`;
! cannot contain a dot
SELECT * FROM lance.c WHERE `e f` = 3 AND `g/h` = '4' AND `ü` = 5 AND `x$y` = 6;
> 9 | 3 | 4 | 5 | 6 | 4 | 3
DROP TABLE lance.c;
