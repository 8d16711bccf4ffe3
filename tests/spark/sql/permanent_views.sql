-- needs Spark 4.2: before, Spark keeps views in its own catalog only.
CREATE NAMESPACE lance.pv;
CREATE NAMESPACE lance.pv.inner;
USE lance.pv;
CREATE TABLE t (a INT COMMENT 'number', b STRING);
INSERT INTO t VALUES (1, 'x'), (2, 'y');
CREATE VIEW v AS SELECT a, upper(b) AS u FROM t WHERE a > 1;
SELECT * FROM lance.pv.v;
> 2 | Y
-- Columns, comments, properties.
CREATE VIEW w (x COMMENT 'first', y) COMMENT 'all rows' TBLPROPERTIES ('k' = '1') WITH SCHEMA BINDING AS SELECT * FROM t;
DESCRIBE w;
> x | int | first
> y | string | None
DESCRIBE EXTENDED w;
~ View Text | SELECT * FROM t
SHOW CREATE TABLE w;
~ WITH SCHEMA BINDING
SHOW TBLPROPERTIES w;
> k | 1
ALTER VIEW w SET TBLPROPERTIES ('z' = '2');
ALTER VIEW w UNSET TBLPROPERTIES ('k');
SHOW TBLPROPERTIES w;
> z | 2
-- CHAR and VARCHAR are shown as declared, and compared as in the table.
CREATE TABLE ch (c CHAR(3), v VARCHAR(4));
INSERT INTO ch VALUES ('x', 'y');
CREATE VIEW chv AS SELECT * FROM ch;
DESCRIBE chv;
> c | char(3) | None
> v | varchar(4) | None
SELECT v FROM chv WHERE c = 'x';
> y
ALTER VIEW chv SET TBLPROPERTIES ('z' = '2');
DESCRIBE chv;
> c | char(3) | None
> v | varchar(4) | None
SELECT v FROM chv WHERE c = 'x';
> y
DROP VIEW chv;
DROP TABLE ch;
-- Names are those of the catalog and namespace in which a view was created, and of its settings.
SET spark.sql.session.timeZone = UTC;
CREATE VIEW pv.inner.moment AS SELECT a, CAST(TIMESTAMP_SECONDS(0) AS STRING) AS m FROM t;
SET spark.sql.session.timeZone = Asia/Tokyo;
USE spark_catalog.default;
SELECT * FROM lance.pv.inner.moment ORDER BY a;
> 1 | 1970-01-01 00:00:00
> 2 | 1970-01-01 00:00:00
RESET spark.sql.session.timeZone;
USE lance.pv;
CREATE VIEW joined AS SELECT v.u, w.y FROM v JOIN w ON v.a = w.x;
SELECT * FROM joined;
> Y | y
ALTER VIEW v AS SELECT u FROM joined;
! RECURSIVE_VIEW
-- Lists.
SHOW VIEWS;
> pv | joined | False
> pv | v | False
> pv | w | False
SHOW VIEWS IN lance.pv.inner;
> pv.inner | moment | False
SHOW TABLES;
> pv | t | False
> pv | joined | False
> pv | v | False
> pv | w | False
-- One set of names.
CREATE VIEW t AS SELECT 1 AS a;
! TABLE_OR_VIEW_ALREADY_EXISTS
CREATE OR REPLACE VIEW t AS SELECT 1 AS a;
! EXPECT_VIEW_NOT_TABLE
CREATE TABLE v (a INT);
! TABLE_OR_VIEW_ALREADY_EXISTS
CREATE OR REPLACE TABLE v AS SELECT 1 AS a;
! TABLE_OR_VIEW_ALREADY_EXISTS
ALTER TABLE t RENAME TO v;
! TABLE_OR_VIEW_ALREADY_EXISTS
ALTER VIEW v RENAME TO t;
! VIEW_ALREADY_EXISTS
CREATE VIEW v AS SELECT 1 AS a;
! TABLE_OR_VIEW_ALREADY_EXISTS
CREATE VIEW IF NOT EXISTS v AS SELECT 1 AS a;
SELECT * FROM v;
> 2 | Y
DROP TABLE v;
! Use DROP VIEW instead
DROP VIEW t;
! Use DROP TABLE instead
-- A view has no rows to change and no versions.
INSERT INTO v VALUES (1, 'z');
! EXPECT_TABLE_NOT_VIEW
DELETE FROM v;
! EXPECT_TABLE_NOT_VIEW
UPDATE v SET a = 1;
! EXPECT_TABLE_NOT_VIEW
MERGE INTO v USING t ON v.a = t.a WHEN MATCHED THEN DELETE;
! EXPECT_TABLE_NOT_VIEW
SELECT * FROM v VERSION AS OF 1;
! UNSUPPORTED_FEATURE.TIME_TRAVEL
-- Other queries and names.
CREATE OR REPLACE VIEW v AS SELECT max(a) AS a FROM t;
SELECT * FROM v;
> 2
ALTER VIEW v RENAME TO greatest_a;
ALTER VIEW greatest_a RENAME TO lance.pv.inner.v;
SELECT * FROM pv.inner.v;
> 2
SELECT * FROM v;
! TABLE_OR_VIEW_NOT_FOUND
CREATE VIEW old AS SELECT count(*) AS n FROM t VERSION AS OF 1;
SELECT * FROM old;
> 0
CREATE VIEW versions AS SELECT version FROM pv.t.history;
SELECT * FROM versions ORDER BY version;
> 1
> 2
-- Columns that are added to the table, and a table that is missing.
CREATE VIEW all_columns AS SELECT * FROM t;
ALTER TABLE t ADD COLUMN c INT;
SELECT * FROM all_columns ORDER BY a;
> 1 | x
> 2 | y
-- Views that follow the columns of their tables. Spark's own catalog may have a view of the same name.
CREATE NAMESPACE spark_catalog.pv;
CREATE VIEW spark_catalog.pv.evolving AS SELECT 'another' AS view;
CREATE TABLE s AS SELECT 1 AS a;
CREATE VIEW evolving WITH SCHEMA EVOLUTION AS SELECT * FROM s;
CREATE VIEW types WITH SCHEMA TYPE EVOLUTION AS SELECT * FROM s;
CREATE VIEW both WITH SCHEMA EVOLUTION AS SELECT * FROM evolving WHERE a IN (SELECT a FROM evolving);
ALTER TABLE s ALTER COLUMN a TYPE BIGINT;
ALTER TABLE s ADD COLUMN c INT;
SELECT * FROM evolving;
> 1 | None
SELECT * FROM both;
> 1 | None
SELECT typeof(a) FROM types;
> bigint
SELECT * FROM types;
> 1
ALTER TABLE s DROP COLUMN c;
SELECT * FROM both;
> 1
SELECT * FROM spark_catalog.pv.evolving;
> another
DROP NAMESPACE spark_catalog.pv CASCADE;
-- A table LIKE a view or a table has its columns, and no name of a view.
CREATE TABLE alike LIKE w TBLPROPERTIES ('k' = '2');
DESCRIBE alike;
> x | int | first
> y | string | None
SHOW TBLPROPERTIES alike;
> k | 2
CREATE TABLE w LIKE t;
! TABLE_OR_VIEW_ALREADY_EXISTS
CREATE TABLE other LIKE t USING parquet;
! write USING lance
CREATE VIEW broken AS SELECT * FROM nothing;
! `nothing`
CREATE TEMPORARY VIEW passing AS SELECT 1 AS a;
CREATE VIEW broken AS SELECT * FROM passing;
! INVALID_TEMP_OBJ_REFERENCE
DROP TABLE t;
SELECT * FROM all_columns;
! `t`
CREATE VIEW lance.unnamed AS SELECT 1 AS a;
! run CREATE NAMESPACE db, and name the view db.unnamed
CREATE VIEW lance.missing.v AS SELECT 1 AS a;
! SCHEMA_NOT_FOUND
CREATE VIEW lance.`{root}/v` AS SELECT 1 AS a;
! a view needs a name
DROP VIEW all_columns;
DROP VIEW all_columns;
! VIEW_NOT_FOUND
DROP VIEW IF EXISTS all_columns;
DROP NAMESPACE lance.pv.inner;
! SCHEMA_NOT_EMPTY
DROP VIEW passing;
-- CHAR is padded in comparisons, as in the table.
CREATE TABLE padded (id INT, c CHAR(4));
INSERT INTO padded VALUES (1, 'abc'), (2, 'abcd');
CREATE VIEW seen AS SELECT * FROM padded;
SELECT id FROM seen WHERE c = 'abc';
> 1
SELECT id FROM seen WHERE c <> 'abc';
> 2
USE spark_catalog.default;
DROP NAMESPACE lance.pv CASCADE;
CREATE NAMESPACE lance.pv;
SHOW TABLES IN lance.pv;
DROP NAMESPACE lance.pv;
