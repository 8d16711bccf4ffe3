-- Statements of other table formats: by name, by path, in the current namespace; and what errors say to write.
CREATE NAMESPACE lance.db;
CREATE TABLE lance.db.h AS SELECT id, id % 3 AS m, "it's" AS s FROM range(30);
CREATE TABLE lance.h AS SELECT 7 AS id;
CREATE TABLE lance.`{root}/p` AS SELECT 1 AS id;
INSERT INTO lance.`{root}/p` VALUES (2);
INSERT INTO lance.db.h VALUES (100, 1, 'x');
OPTIMIZE lance.db.h;
~ 2
OPTIMIZE lance.`{root}/p`;
~ 2
DESCRIBE DETAIL lance.`{root}/p`;
~ lance
CREATE TABLE lance.db.w (a FLOAT);
ALTER TABLE lance.db.w ALTER COLUMN a TYPE double COMMENT "unit 'm'";
DESCRIBE TABLE lance.db.w;
~ unit 'm'
DROP TABLE lance.db.w;
REORG TABLE lance.db.h APPLY (UPGRADE UNIFORM(ICEBERG_COMPAT_VERSION=2));
! CREATE TABLE other USING iceberg AS SELECT * FROM lance.db.h
USE lance;
ANALYZE TABLES COMPUTE STATISTICS NOSCAN;
USE lance.db;
INSERT INTO h VALUES (101, 1, 'y');
OPTIMIZE h WHERE s = 'y' OR s = "it's";
~ 2
OPTIMIZE h ZORDER BY (m, id);
OPTIMIZE TABLE h FULL WHERE id > 5 ZORDER BY m;
VACUUM h DRY RUN;
GENERATE symlink_format_manifest FOR TABLE h;
! write SELECT file_path FROM lance.`db`.h.data_files
SELECT count(file_path) > 0 FROM lance.`db`.h.data_files;
> True
GENERATE symlink_format_manifest FOR TABLE db.h;
! write SELECT file_path FROM lance.db.h.data_files
GENERATE symlink_format_manifest FOR TABLE '{root}/p';
! write SELECT file_path FROM lance.`{root}/p`.data_files
SELECT count(file_path) > 0 FROM lance.`{root}/p`.data_files;
> True
VACUUM h USING INVENTORY (SELECT * FROM h);
! write VACUUM h, as it lists the table's files itself
VACUUM h;
VACUUM h RETAIN 0 HOURS;
! allow_short_retention => true
CALL lance.system.vacuum('h', 0, allow_short_retention => true, dry_run => true);
VACUUM h RETAIN 200 HOURS;
DESCRIBE HISTORY h;
~ WRITE
DESC HISTORY h LIMIT 1;
~ OPTIMIZE
DESCRIBE DETAIL h;
~ lance
MERGE INTO h USING (SELECT 3L AS k) AS q ON h.id = q.k WHEN MATCHED THEN UPDATE SET m = h.m;
DESC HISTORY h LIMIT 1;
~ MERGE
UPDATE h SET m = m WHERE id = 3;
DESC HISTORY h LIMIT 1;
~ UPDATE
ANALYZE TABLE h COMPUTE STATISTICS;
ANALYZE TABLE lance.db.h COMPUTE STATISTICS FOR COLUMNS id, `m`;
ANALYZE TABLE h COMPUTE STATISTICS FOR ALL COLUMNS;
ANALYZE TABLE h COMPUTE STATISTICS FOR COLUMNS nope;
! no column 'nope'
ANALYZE TABLE h PARTITION (m) COMPUTE STATISTICS NOSCAN;
! leave out PARTITION, as in ANALYZE TABLE t COMPUTE STATISTICS
ANALYZE TABLES IN lance.db COMPUTE STATISTICS NOSCAN;
ANALYZE TABLES IN lance.nope COMPUTE STATISTICS;
! SCHEMA_NOT_FOUND
ANALYZE TABLES COMPUTE STATISTICS;
INSERT OVERWRITE DIRECTORY '{root}/files' USING lance SELECT 1 AS id;
! write CREATE OR REPLACE TABLE lance.`{root}/files` AS SELECT ..., or INSERT OVERWRITE lance.`{root}/files` SELECT ...
CREATE OR REPLACE TABLE lance.`{root}/files` AS SELECT 1 AS id;
INSERT OVERWRITE lance.`{root}/files` SELECT 2 AS id;
SELECT * FROM lance.`{root}/files`;
> 2
INSERT OVERWRITE DIRECTORY USING lance OPTIONS (path '{root}/files') SELECT 1 AS id;
! write CREATE OR REPLACE TABLE lance.`/path`
SELECT id FROM h WHERE _metadata.file_path = 'x';
! write _rowid, _rowaddr, _fragid, _row_created_at_version or _row_last_updated_at_version; SELECT * FROM <catalog>
UPDATE h SET m = 1 WHERE _metadata.file_path = 'x';
! a Lance table has no _metadata, as several files have the columns of a row: write _rowid
UPDATE h SET m = _metadata.file_size;
! a Lance table has no _metadata
DELETE FROM h WHERE _metadata.file_path = 'x';
! a Lance table has no _metadata
DELETE FROM h WHERE EXISTS (SELECT 1 FROM lance.h AS o WHERE o.id = h._metadata.row_id);
! a Lance table has no _metadata
MERGE INTO h USING lance.h AS o ON h.id = o.id AND h._metadata.file_path = 'x' WHEN MATCHED THEN DELETE;
! a Lance table has no _metadata
CREATE TABLE tracked TBLPROPERTIES ('delta.enableRowTracking' = 'true') AS SELECT id FROM range(3);
UPDATE tracked SET id = 10 WHERE id = 1;
SELECT id, _metadata.row_id = _rowid, _metadata.row_commit_version = _row_last_updated_at_version, _metadata.row_commit_version > 1 FROM tracked ORDER BY id;
> 0 | True | True | False
> 2 | True | True | False
> 10 | True | True | True
SELECT t._metadata.row_id FROM tracked AS t JOIN tracked AS o ON t._metadata.row_id = o._metadata.row_id WHERE t._metadata.row_commit_version > 1;
> 1
SELECT count(*) FROM (SELECT *, _metadata.row_id AS r FROM tracked WHERE id > 0) WHERE r < 2;
> 1
SELECT max(_metadata.row_commit_version) FROM tracked WHERE id IN (SELECT id FROM tracked WHERE _metadata.row_id = 2);
> 1
SELECT _metadata.row_id, _metadata.file_path FROM tracked;
! a Lance table has no _metadata
SELECT _metadata FROM tracked;
! a Lance table has no _metadata
CREATE TABLE own AS SELECT 1 AS id, named_struct('file_path', 'x') AS _metadata;
UPDATE own SET id = 2 WHERE _metadata.file_path = 'x';
SELECT id FROM own WHERE _metadata.file_path = 'x';
> 2
SELECT count(_rowid), count(_rowaddr), count(_fragid), min(_row_created_at_version) > 0 FROM h WHERE id = 3;
> 1 | 1 | 1 | True
SELECT max(_row_last_updated_at_version) > 0, (SELECT count(*) > 0 FROM lance.db.h.data_files) FROM h;
> True | True
SELECT count(*) > 0 FROM own.data_files;
! `own`.`data_files` (write `lance`.`db`.`own`.`data_files`)
SELECT count(*) > 0 FROM `lance`.`db`.`own`.`data_files`;
> True
SELECT * FROM h.nope;
! TABLE_OR_VIEW_NOT_FOUND
ALTER TABLE h CREATE TAG first AS OF VERSION 1;
ALTER TABLE h CREATE OR REPLACE TAG first AS OF VERSION 2;
SELECT count(*) FROM h VERSION AS OF 'first';
> 31
ALTER TABLE h CREATE BRANCH dev;
SELECT count(*) FROM h VERSION AS OF 'dev';
> 32
DELETE FROM `h@dev` WHERE id < 10;
SELECT count(*) FROM h VERSION AS OF 'dev';
> 22
ALTER TABLE h DROP BRANCH dev;
ALTER TABLE h CREATE OR REPLACE BRANCH dev;
RESTORE TABLE h TO VERSION AS OF 1;
SELECT count(*) FROM h;
> 30
RESTORE TABLE h TO VERSION AS OF 'first';
SELECT count(*) FROM h;
> 31
RESTORE TABLE h TO TIMESTAMP AS OF '2999-01-01 00:00:00';
RESTORE TABLE h TO TIMESTAMP AS OF '1999-01-01 00:00:00';
! 1999
ALTER TABLE h DROP TAG first;
SELECT count(*) FROM h VERSION AS OF 'main';
> 31
SELECT count(*) FROM lance.db.h.branch_main;
> 31
ALTER TABLE h CREATE TAG main;
! choose another name, such as 'main-1'
ALTER TABLE h CREATE TAG `main-1`;
ALTER TABLE h RENAME TAG `main-1` TO v;
! write ALTER TABLE h CREATE TAG v AS OF VERSION number, and then ALTER TABLE h DROP TAG `main-1`
ALTER TABLE h CREATE TAG v AS OF VERSION 2;
ALTER TABLE h DROP TAG `main-1`;
ALTER TABLE h CREATE BRANCH main;
! 'main' cannot be a branch
ALTER TABLE h REPLACE BRANCH main AS OF VERSION 2;
! write RESTORE TABLE <table> TO VERSION AS OF <number>
ALTER TABLE h CREATE BRANCH v;
! the table has a tag 'v', so VERSION AS OF 'v' would be ambiguous: choose another name
ALTER TABLE h CREATE TAG dev;
! the table has a branch 'dev'
ALTER TABLE h DROP TAG v;
ALTER TABLE h RENAME BRANCH dev TO `new-dev`;
! write ALTER TABLE lance.`db`.h.`branch_dev` CREATE BRANCH `new-dev`
ALTER TABLE lance.`db`.h.`branch_dev` CREATE BRANCH `new-dev`;
SELECT count(*) FROM h VERSION AS OF 'new-dev';
> 32
CREATE TABLE lance.`{root}/b` AS SELECT 1 AS id;
ALTER TABLE lance.`{root}/b` CREATE BRANCH a;
ALTER TABLE lance.`{root}/b` RENAME BRANCH a TO b;
! write ALTER TABLE lance.`{root}/b`.`branch_a` CREATE BRANCH b
ALTER TABLE lance.`{root}/b`.`branch_a` CREATE BRANCH b;
SELECT * FROM lance.`{root}/b`.branch_b;
> 1
ALTER TABLE h FAST FORWARD main TO dev;
! write CALL lance.system.fast_forward('h', 'main', 'branch')
CREATE EXTERNAL TABLE cloned SHALLOW CLONE h;
! write CREATE TABLE cloned SHALLOW CLONE h
CREATE TABLE cloned SHALLOW CLONE h;
DROP TABLE cloned;
UNDROP TABLE cloned;
! write CREATE TABLE cloned DEEP CLONE copy, as DROP TABLE deletes the files of a table
CREATE TABLE cloned DEEP CLONE h;
TABLE h VERSION AS OF 1;
! write SELECT * FROM h VERSION AS OF 1
SELECT count(*) FROM h VERSION AS OF 1;
> 30
FSCK REPAIR TABLE cloned DRY RUN;
! write CALL lance.system.verify('cloned')
CALL lance.system.verify('cloned');
FSCK REPAIR TABLE lance.`{root}/b`;
! write CALL lance.system.verify('lance.`{root}/b`')
CALL lance.system.verify('lance.`{root}/b`');
CREATE TABLE parts PARTITIONED BY (m) AS SELECT 1 AS id, 2 AS m;
MSCK REPAIR TABLE parts;
! write SHOW PARTITIONS parts
ALTER TABLE parts RECOVER PARTITIONS;
! write SHOW PARTITIONS parts
REPAIR TABLE parts SYNC METADATA;
! write SHOW PARTITIONS parts
SHOW PARTITIONS parts;
> m=2
ALTER TABLE parts SET SERDEPROPERTIES ('a' = 'b');
! write ALTER TABLE parts SET TBLPROPERTIES ('name' = 'value')
ALTER TABLE parts SET TAGS ('a' = 'b');
! write ALTER TABLE parts SET TBLPROPERTIES ('name' = 'value')
ALTER TABLE parts SET TBLPROPERTIES ('name' = 'value');
CREATE TABLE spark_catalog.default.hint_rows USING parquet AS SELECT 3 AS id, 4 AS m;
LOAD DATA INPATH '{root}/files' INTO TABLE parts;
! write INSERT INTO parts SELECT * FROM parquet.`/path`
DROP TABLE spark_catalog.default.hint_rows;
ALTER TABLE parts ALTER COLUMN id SET NOT NULL;
! write ALTER TABLE parts ADD CONSTRAINT name CHECK (id IS NOT NULL)
ALTER TABLE parts ADD CONSTRAINT name CHECK (id IS NOT NULL);
ALTER TABLE parts CHANGE id key INT;
! write ALTER TABLE parts RENAME COLUMN id TO key
ALTER TABLE parts ADD COLUMN IF NOT EXISTS more BIGINT;
! write ALTER TABLE parts ADD COLUMN more BIGINT
ALTER TABLE parts ADD COLUMN more BIGINT;
ALTER TABLE parts DROP PRIMARY KEY;
! write ALTER TABLE parts DROP CONSTRAINT name
ALTER TABLE parts DROP CONSTRAINT name;
ALTER TABLE parts RENAME COLUMN id TO key;
ALTER TABLE parts DROP FEATURE deletionVectors TRUNCATE HISTORY;
! write REORG TABLE parts APPLY (PURGE)
REORG TABLE parts APPLY (PURGE);
ALTER TABLE parts SET WRITE DISTRIBUTION HASH;
! write ALTER TABLE parts WRITE DISTRIBUTED BY PARTITION
ALTER TABLE parts WRITE DISTRIBUTED BY PARTITION;
ALTER TABLE parts SET MANAGED;
! write CREATE TABLE other DEEP CLONE parts
CREATE TABLE other DEEP CLONE parts;
ALTER TABLE parts ENABLE PREDICTIVE OPTIMIZATION;
! write OPTIMIZE parts, and then VACUUM parts
ALTER TABLE parts EXECUTE OPTIMIZE;
! write OPTIMIZE parts
ANALYZE TABLE parts COMPUTE DELTA STATISTICS;
! write ANALYZE TABLE parts COMPUTE STATISTICS
ALTER TABLE parts SET ROW FILTER f ON (key);
! write CREATE TEMPORARY VIEW name AS SELECT * FROM parts WHERE condition
UPDATE parts SET more = s.more FROM other AS s WHERE s.key = parts.key;
! write MERGE INTO parts AS t USING source AS s ON t.key = s.key WHEN MATCHED THEN UPDATE SET column = s.column
MERGE INTO parts AS t USING other AS s ON t.key = s.key WHEN MATCHED THEN UPDATE SET more = s.more;
DELETE FROM parts USING other AS s WHERE s.key = parts.key;
! write MERGE INTO parts AS t USING source AS s ON t.key = s.key WHEN MATCHED THEN DELETE
MERGE INTO parts AS t USING other AS s ON t.key = s.key WHEN MATCHED THEN DELETE;
INSERT INTO parts SELECT * FROM other ON CONFLICT DO NOTHING;
! write MERGE INTO parts AS t USING source AS s ON t.key = s.key WHEN NOT MATCHED THEN INSERT *
MERGE INTO parts AS t USING other AS s ON t.key = s.key WHEN NOT MATCHED THEN INSERT *;
UPSERT INTO parts SELECT * FROM other;
! write MERGE INTO parts AS t USING source AS s ON t.key = s.key WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *
MERGE INTO parts AS t USING other AS s ON t.key = s.key WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *;
CREATE BLOOMFILTER INDEX ON TABLE parts FOR COLUMNS (key);
! write CREATE INDEX name ON parts USING bloomfilter (key)
CREATE INDEX name ON parts USING bloomfilter (key);
SHOW BRANCHES IN parts;
! write SELECT * FROM lance.`db`.parts.refs
SELECT name FROM lance.`db`.parts.refs;
> main
SHOW SNAPSHOTS parts;
! write SELECT * FROM lance.`db`.parts.snapshots
SHOW HISTORY parts;
! write DESCRIBE HISTORY parts
SELECT * FROM delta.`{root}/b` AS b;
! for a Lance table write SELECT * FROM lance.`{root}/b` AS b
SELECT * FROM lance.`{root}/b` AS b;
> 1
/* from /* a */ tool */ OPTIMIZE h -- WHERE nope = 1
;
ALTER TABLE h /* not the key */ SET IDENTIFIER FIELDS id -- , s
;
SHOW TBLPROPERTIES h ('identifier-fields');
> identifier-fields | id
OPTIMIZE h WHERE s = '-- no /* comment' /* WHERE nope */;
/* a */ INSERT OVERWRITE DIRECTORY '{root}/files' USING lance SELECT 1 AS id;
! write CREATE OR REPLACE TABLE
CALL lance.system.compact('h');
CALL lance.system.compcat('h');
! did you mean lance.system.compact?
CALL lance.system.nope('h');
! lance.system has add_columns_from, add_
CALL lance.compact('h');
! did you mean lance.system.compact?
CALL lance.system.history('lance.h', 5);
~ CREATE TABLE AS SELECT
SELECT count(*) FROM h VERSION AS OF 'nope';
! nope
VACUUM h NOW;
! VACUUM h [RETAIN number HOURS] [DRY RUN]
CREATE INDEX i ON h (id);
CREATE INDEX i ON TABLE lance.db.h USING btree (id);
! there is an index 'i' already
CREATE INDEX IF NOT EXISTS i ON h (id);
CREATE OR REPLACE INDEX i ON h USING zonemap (`id`) OPTIONS (rows_per_zone = 20);
ALTER TABLE h CREATE INDEX words USING fts (s) WITH ('with_position' = 'true');
SHOW INDEXES FROM h;
~ ZoneMap
SELECT count(*) FROM text_search('lance.db.h', 's', "it's", 3);
> 3
SHOW INDEXES IN lance.db.h;
~ Inverted
CREATE INDEX j ON h (id, m);
! an index has one column, not (id, m): create one index for each column
CREATE INDEX j ON h (id) OPTIONS (nope = 3);
! takes no options: leave out nope
CREATE INDEX j ON h;
! CREATE [OR REPLACE] INDEX [IF NOT EXISTS] name ON h [USING type] (column)
CREATE UNIQUE INDEX j ON h (id);
! ALTER TABLE h SET TBLPROPERTIES ('primary_key' = 'column')
DROP INDEX i ON h;
DROP INDEX i ON h;
! index not found: 'i'
DROP INDEX IF EXISTS i ON h;
ALTER TABLE h DROP INDEX words;
CREATE TEMPORARY VIEW values_of AS SELECT id, id + 1 AS next FROM h;
ALTER TABLE h ADD COLUMNS next FROM values_of;
! CALL lance.system.add_columns_from('h', source => 'values_of', keys => '<key columns>', columns => 'next')
CALL lance.system.add_columns_from('h', source => 'values_of', keys => 'id', columns => 'next');
SELECT count(*) FROM h WHERE next = id + 1;
> 31
USE spark_catalog.default;
OPTIMIZE h;
! CALL `lance`.system.compact(table => 'h')
CALL `lance`.system.compact(table => 'h');
