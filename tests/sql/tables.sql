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
CREATE TABLE lance.db.p (a INT) PARTITIONED BY (a);
! no partitions
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
