-- Procedures, versions by tag and by branch.
CREATE NAMESPACE lance.db;
CREATE TABLE lance.db.t AS SELECT id, id % 3 AS m FROM range(30);
INSERT INTO lance.db.t VALUES (100, 1);
CALL lance.system.create_tag('db.t', 'first', '1');
SELECT count(*) FROM lance.db.t VERSION AS OF 'first';
> 30
CALL lance.system.update_tag(table => 'lance.db.t', tag => 'first');
SELECT count(*) FROM lance.db.t VERSION AS OF 'first';
> 31
CALL lance.system.drop_tag('db.t', 'first');
SELECT count(*) FROM lance.db.t VERSION AS OF 'first';
! first
CALL lance.system.create_branch('db.t', 'dev', '1');
INSERT INTO lance.db.`t@dev` VALUES (200, 2), (201, 2);
SELECT count(*) FROM lance.db.`t@dev`;
> 32
SELECT count(*) FROM lance.db.t;
> 31
CALL lance.system.create_index('db.t', 'id', name => 'by_id');
CALL lance.system.create_index('db.t', column => 'm', type => 'bitmap');
CALL lance.system.optimize_indices('db.t');
SELECT id FROM lance.db.t WHERE id = 100;
> 100
CALL lance.system.drop_index('db.t', 'by_id');
CALL lance.system.drop_index('db.t', 'by_id');
! by_id
CALL lance.system.compact(table => 'db.t');
CALL lance.system.sort('db.t', 'm, id');
CALL lance.system.zorder('db.t', 'm, id');
SELECT count(*), sum(id) FROM lance.db.t;
> 31 | 535
CALL lance.system.vacuum('db.t', dry_run => true);
CALL lance.system.restore('db.t', '1');
SELECT count(*) FROM lance.db.t;
> 30
CALL lance.system.clone('db.t', 'db.copy', shallow => false);
SELECT count(*) FROM lance.db.copy;
> 30
CALL lance.system.drop_branch('db.t', 'dev');
SELECT count(*) FROM lance.db.`t@dev`;
! branch 'dev'
CALL lance.system.nope('db.t');
! nope
CALL lance.system.compact('db.nope');
! nope
OPTIMIZE lance.db.t;
optimize `db`.`t` WHERE a > 1 ZORDER BY (a, b);
! CALL `lance`.system.zorder(table => '`db`.`t`', where => 'a > 1', columns => 'a, b')
VACUUM db.t RETAIN 7 HOURS;
! CALL `lance`.system.vacuum(table => 'db.t', retention_hours => 7)
RESTORE TABLE t TO VERSION AS OF 1;
! CALL `lance`.system.restore(table => 't', version => '1')
ALTER TABLE db.t CREATE BRANCH dev;
! CALL `lance`.system.create_branch(table => 'db.t', branch => 'dev')
SELEC 1;
! PARSE_SYNTAX_ERROR
CREATE TABLE lance.db.ice AS SELECT id, cast(id AS string) AS name FROM range(4);
INSERT INTO lance.db.ice VALUES (9, 'nine');
DELETE FROM lance.db.ice WHERE id = 0;
CALL lance.system.rollback_to_snapshot('db.ice', 2);
> 3 | 4
CALL lance.system.set_current_snapshot(table => 'db.ice', snapshot_id => 3);
> 4 | 5
CALL lance.system.rollback_to_timestamp('db.ice', current_timestamp());
> 5 | 6
SELECT count(*) FROM lance.db.ice;
> 4
SELECT snapshot_id FROM lance.db.ice.snapshots WHERE operation = 'delete';
> 3
SELECT file_count FROM lance.db.ice.partitions VERSION AS OF 2;
> 2
CALL lance.system.create_tag('db.ice', 'second', '2');
CALL lance.system.create_branch('db.ice', 'side', '2');
SELECT file_count FROM lance.db.ice.partitions VERSION AS OF 'second';
> 2
SELECT file_count FROM lance.db.ice.partitions VERSION AS OF 'side';
> 2
CALL lance.system.drop_tag('db.ice', 'second');
CALL lance.system.drop_branch('db.ice', 'side');
CALL lance.system.rewrite_data_files(table => 'db.ice', strategy => 'sort', sort_order => 'id DESC NULLS LAST');
SELECT first(id), last(id) FROM lance.db.ice;
> 9 | 1
CALL lance.system.rewrite_data_files(table => 'db.ice', options => map('rewrite-all', 'true'));
! strategy => 'sort' rewrites all files
CALL lance.system.create_changelog_view(table => 'db.ice', changelog_view => 'log', options => map('start-snapshot-id', '2'));
SELECT _change_type, _commit_snapshot_id, id FROM log WHERE _commit_snapshot_id = 3;
> DELETE | 3 | 0
-- Arguments in Iceberg's order: compute_updates, identifier_columns, net_changes.
CALL lance.system.create_changelog_view('db.ice', 'pairs', map('start-snapshot-id', '2'), true, array('id'), false);
CALL lance.system.remove_orphan_files('db.ice', NULL, NULL, true, 4, NULL, map('s3a', 's3'), NULL, 'IGNORE', true, false);
CALL lance.system.rewrite_table_path('db.ice', '/old', '{root}/moved');
! DEEP CLONE db.ice
CREATE TABLE lance.`{root}/moved` DEEP CLONE lance.db.ice;
SELECT count(*) FROM lance.`{root}/moved`;
> 4
CALL lance.system.expire_snapshots(table => 'db.ice', older_than => current_timestamp());
! allow_short_retention => true
CALL lance.system.expire_snapshots(table => 'db.ice', snapshot_ids => array(2));
SELECT count(*) FROM lance.db.ice VERSION AS OF 2;
! version 2
CALL lance.system.create_changelog_view('db.ice');
! options => map('start-snapshot-id', '3')
CALL lance.system.create_changelog_view('db.ice', 'log', map('start-snapshot-id', '3'));
SELECT count(*) > 0 FROM log;
> True
CALL lance.system.expire_snapshots(table => 'db.ice', snapshot_ids => array(99));
! snapshot 99 does not exist (available: 
CALL lance.system.remove_orphan_files(table => 'db.ice', dry_run => true);
CALL lance.system.create_branch('db.ice', 'audit');
INSERT INTO lance.db.`ice@audit` VALUES (50, 'fifty');
CALL lance.system.rewrite_data_files(table => 'db.ice', strategy => 'sort', sort_order => 'id', branch => 'nope');
! nope
CALL lance.system.fast_forward('db.ice', 'main', 'audit');
SELECT max(id) FROM lance.db.ice;
> 50
CALL lance.system.migrate('spark_catalog.db.ice');
! snapshot('spark_catalog.db.ice', 'db.ice'), and then DROP TABLE spark_catalog.db.ice
CALL lance.system.migrate('db.ice');
! CALL lance.system.snapshot('spark_catalog.db.ice', 'db.ice')
CALL lance.system.compute_table_stats('db.ice', columns => array('id'));
! CALL lance.system.create_index('db.ice', 'id', 'ZONEMAP')
CALL lance.system.create_index('db.ice', 'id', 'ZONEMAP');
CALL lance.system.compute_partition_stats('db.ice');
! CALL lance.system.create_index('db.ice', '<column>', 'ZONEMAP')
CALL lance.system.cherrypick_snapshot('db.ice', 1);
! SELECT * FROM lance.`db`.`ice`.`refs` has their newest
SELECT * FROM lance.`db`.`ice`.`refs`;
~ main
CALL lance.system.cherrypick_snapshot('db.ice', 1);
! CALL lance.system.rollback_to_snapshot('db.ice', 1)
CALL lance.system.snapshot('lance.db.ice', 'db.ice_copy');
SELECT count(*) FROM lance.db.ice_copy;
> 5
CALL lance.system.add_files('db.ice_copy', 'lance.db.ice');
SELECT count(*) FROM lance.db.ice_copy;
> 10
ALTER TABLE lance.db.ice CREATE BRANCH IF NOT EXISTS dev RETAIN 30 DAYS WITH SNAPSHOT RETENTION 3 SNAPSHOTS 2 DAYS;
ALTER TABLE lance.db.ice CREATE OR REPLACE TAG t AS OF VERSION 1 RETAIN 365 DAYS;
ALTER TABLE lance.db.ice REPLACE TAG t AS OF VERSION 3 RETAIN 1 DAY;
SELECT name, snapshot_id, max_reference_age_in_ms, min_snapshots_to_keep FROM lance.db.ice.refs WHERE name IN ('t', 'dev') ORDER BY name;
> dev | 9 | 2592000000 | 3
> t | 3 | 86400000 | None
ALTER TABLE lance.db.ice REPLACE BRANCH dev AS OF VERSION 3;
SELECT count(*) FROM lance.db.ice VERSION AS OF 'dev';
> 4
ALTER TABLE lance.db.ice DROP BRANCH IF EXISTS nope;
CREATE TABLE lance.db.cl SHALLOW CLONE lance.db.ice VERSION AS OF 1 TBLPROPERTIES (owner = 'me');
SELECT count(*) FROM lance.db.cl;
> 4
CREATE OR REPLACE TABLE lance.db.cl DEEP CLONE lance.db.ice;
SELECT count(*) FROM lance.db.cl;
> 5
CREATE TABLE lance.db.cl CLONE lance.db.ice;
! CREATE OR REPLACE TABLE
CREATE TABLE lance.db.ordered (id INT, v STRING) CLUSTER BY (id);
INSERT INTO lance.db.ordered VALUES (3, 'a'), (1, 'c'), (2, 'b');
OPTIMIZE lance.db.ordered FULL;
SELECT first(id), last(id) FROM lance.db.ordered;
> 1 | 3
ALTER TABLE lance.db.ordered CLUSTER BY NONE;
ALTER TABLE lance.db.ordered WRITE ORDERED BY id DESC NULLS LAST;
OPTIMIZE lance.db.ordered FULL;
SELECT first(id), last(id) FROM lance.db.ordered;
> 3 | 1
ALTER TABLE lance.db.ordered WRITE LOCALLY ORDERED BY id;
OPTIMIZE lance.db.ordered FULL;
SELECT first(id), last(id) FROM lance.db.ordered;
> 1 | 3
ALTER TABLE lance.db.ordered WRITE UNORDERED;
CALL lance.system.rewrite_data_files(table => 'db.ordered', strategy => 'sort');
! the table has no sort order
CREATE TABLE lance.db.parted PARTITIONED BY (k) AS SELECT 1 AS id, 2 AS k;
SHOW PARTITIONS lance.db.parted;
> k=2
DROP TABLE lance.db.parted;
ALTER TABLE lance.db.ordered SET IDENTIFIER FIELDS id, v;
ALTER TABLE lance.db.ordered DROP IDENTIFIER FIELDS v;
SHOW TBLPROPERTIES lance.db.ordered ('identifier-fields');
> identifier-fields | id
DELETE FROM lance.db.ordered WHERE id = 2;
REORG TABLE lance.db.ordered APPLY (PURGE);
SELECT sum(deleted_rows) FROM lance.db.ordered.fragments;
> 0
ALTER TABLE lance.db.ordered ADD PARTITION FIELD bucket(16, nope);
! needs column 'nope'
CREATE TABLE lance.db.parts (id INT) PARTITIONED BY (nope(id));
! no transform 'nope'
CONVERT TO LANCE lance.db.ordered;
! CREATE TABLE lance.`<new path>` AS SELECT * FROM lance.db.ordered
GENERATE symlink_format_manifest FOR TABLE lance.db.ordered;
! SELECT file_path FROM lance.db.ordered.data_files
SELECT count(file_path) FROM lance.db.ordered.data_files;
> 1
INSERT INTO lance.db.ice.branch_dev VALUES (77, 'x');
SELECT count(*) FROM lance.db.ice.branch_dev;
> 5
SELECT count(*) FROM lance.db.ice.tag_t;
> 4
DELETE FROM lance.db.ice.tag_t WHERE true;
! tag
SELECT count(*) FROM lance.db.ice WITH (branch = 'dev');
> 5
ALTER TABLE lance.db.ice SET TBLPROPERTIES ('delta.appendOnly' = 'true');
DELETE FROM lance.db.ice WHERE id = 3;
! UNSET TBLPROPERTIES ('delta.appendOnly')
INSERT OVERWRITE lance.db.ice SELECT * FROM lance.db.ice;
! UNSET TBLPROPERTIES ('delta.appendOnly')
INSERT INTO lance.db.ice VALUES (78, 'y');
OPTIMIZE lance.db.ice;
ALTER TABLE lance.db.ice UNSET TBLPROPERTIES ('delta.appendOnly');
DELETE FROM lance.db.ice WHERE id = 78;
SELECT count(*) FROM lance.db.ice;
> 5
CALL lance.system.publish_changes('db.ice', '7');
! ALTER TABLE t CREATE BRANCH `wap-7`
ALTER TABLE lance.db.ice CREATE BRANCH `wap-7`;
INSERT INTO lance.db.ice.`branch_wap-7` VALUES (90, 'z');
CALL lance.system.publish_changes('db.ice', '7');
SELECT max(id) FROM lance.db.ice;
> 90
CREATE TABLE lance.db.wap (id BIGINT, v STRING) TBLPROPERTIES ('write.wap.enabled' = 'true');
CREATE TABLE lance.db.plain (id BIGINT, v STRING);
INSERT INTO lance.db.wap VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd');
SET spark.wap.branch = staged;
SELECT count(*) FROM lance.db.wap;
> 4
UPDATE lance.db.wap SET v = 'x' WHERE id = 1;
DELETE FROM lance.db.wap WHERE id = 2;
INSERT INTO lance.db.wap VALUES (5, 'e');
INSERT INTO lance.db.plain VALUES (5, 'e');
SELECT * FROM lance.db.wap ORDER BY id;
> 1 | x
> 3 | c
> 4 | d
> 5 | e
SELECT count(*) FROM lance.db.wap VERSION AS OF 2;
> 4
CREATE OR REPLACE TABLE lance.db.wap AS SELECT 1 AS id;
! or RESET spark.wap.branch
RESET spark.wap.branch;
SELECT count(*), min(v) FROM lance.db.wap;
> 4 | a
SELECT count(*) FROM lance.db.wap.branch_staged;
> 4
SELECT count(*) FROM lance.db.wap VERSION AS OF 'staged';
> 4
SELECT count(*) FROM lance.db.plain;
> 1
INSERT INTO lance.db.wap VALUES (6, 'f');
CALL lance.system.fast_forward('db.wap', 'main', 'staged');
SELECT * FROM lance.db.wap ORDER BY id;
> 1 | x
> 3 | c
> 4 | d
> 5 | e
> 6 | f
SET spark.wap.id = 9;
DELETE FROM lance.db.wap WHERE id = 1;
UPDATE lance.db.wap SET v = 'y' WHERE id = 3;
MERGE INTO lance.db.wap t USING (SELECT 4 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 'z';
SELECT count(*), max(v) FROM lance.db.wap;
> 5 | x
SET spark.wap.branch = other;
INSERT INTO lance.db.wap VALUES (7, 'g');
! both set: RESET spark.wap.id
RESET spark.wap.branch;
CALL lance.system.cherrypick_snapshot('db.wap', 7);
! publish 5 first
CALL lance.system.cherrypick_snapshot('db.wap', 5);
! name one, branch => 'staged'
CALL lance.system.cherrypick_snapshot('db.wap', 5, branch => 'wap-9');
SELECT count(*), max(v) FROM lance.db.wap;
> 4 | f
CALL lance.system.publish_changes('db.wap', '9');
RESET spark.wap.id;
SELECT * FROM lance.db.wap ORDER BY id;
> 3 | y
> 4 | z
> 5 | e
> 6 | f
SET spark.wap.id = 10;
TRUNCATE TABLE lance.db.wap;
RESET spark.wap.id;
SELECT count(*) FROM lance.db.wap;
> 4
CALL lance.system.publish_changes('db.wap', '10');
SELECT count(*) FROM lance.db.wap;
> 0
