-- Errors that say what to write, each followed by that.
CREATE NAMESPACE lance.db;
USE lance.db;
CREATE TABLE p (id INT, ts TIMESTAMP, s STRING) PARTITIONED BY (s);
INSERT INTO p VALUES (1, timestamp'2026-01-01 00:00:00', 'a'), (2, timestamp'2026-01-02 00:00:00', 'b');
ALTER TABLE p SET TBLPROPERTIES ('spark_lance.partitioning' = 'x');
! internal and cannot be set or removed; settings with the prefix
ALTER TABLE p ADD PARTITION FIELD days(ts);
ALTER TABLE p DROP PARTITION FIELD days(ts);
ALTER TABLE p REPLACE COLUMNS (id INT);
! write first ALTER TABLE
ALTER TABLE p DROP COLUMN ts;
ALTER TABLE p REPLACE COLUMNS (id INT, ID INT, s STRING);
! Choose another name
ALTER TABLE p REPLACE COLUMNS (s STRING, id INT);
SELECT * FROM p ORDER BY id;
> a | 1
> b | 2
CREATE TABLE d (id INT, n STRUCT<a: INT>, s STRING);
ALTER TABLE d ADD COLUMN n.b INT DEFAULT 3;
! leave out DEFAULT
ALTER TABLE d ADD COLUMN n.b INT;
ALTER TABLE d ADD COLUMN z INT DEFAULT 3;
INSERT INTO d (id, n, s, z) VALUES (1, named_struct('a', 1, 'b', 2), 'x', DEFAULT);
SELECT n.b, z FROM d;
> 2 | 3
UPDATE d SET n.a = 1, n = NULL;
! `n` is set twice, as a whole or in part
UPDATE d SET n.a = 5;
UPDATE d SET id = 1, id = 2;
! twice
CALL lance.system.create_changelog_view(table => 'd', net_changes => true, compute_updates => true);
! leave out compute_updates
CALL lance.system.create_changelog_view(table => 'd', net_changes => true);
CALL lance.system.remove_orphan_files(table => 'd', location => '/elsewhere', dry_run => true);
! leave out location
CALL lance.system.remove_orphan_files(table => 'd', dry_run => true);
CALL lance.system.remove_orphan_files(table => 'd', older_than => current_timestamp());
! CALL lance.system.vacuum('<table>', delete_unverified => true)
CALL lance.system.vacuum('d', delete_unverified => true);
CALL lance.system.migrate('d');
! CALL lance.system.snapshot(
CALL lance.system.add_files(table => 'd', source_table => 'parquet.`{root}/none`', check_duplicate_files => true);
! leave out check_duplicate_files
CALL lance.system.fast_forward('d', 'main', 'nope');
! nope
ALTER TABLE d CREATE BRANCH b;
INSERT INTO `d@b` (id, n, s, z) VALUES (2, NULL, 'y', 1);
CALL lance.system.fast_forward('d', 'main', 'b');
ALTER TABLE d CREATE BRANCH b;
! exists already
ALTER TABLE d CREATE OR REPLACE BRANCH b;
ALTER TABLE d DROP BRANCH b;
ALTER TABLE d CREATE TAG `a..b`;
! no two dots in a row
ALTER TABLE d CREATE TAG `a.b`;
ALTER TABLE d REPLACE BRANCH never;
! write CREATE OR REPLACE BRANCH
ALTER TABLE d CREATE OR REPLACE BRANCH never;
SELECT * FROM lance.db.d.changes VERSION AS OF 2;
! leave out VERSION AS OF, and write WHERE _commit_version <= n
SELECT count(*) FROM lance.db.d.changes WHERE _commit_version <= 4;
> 1
CREATE TABLE r (_rowid INT);
! reserved
CREATE TABLE r (row_id INT);
ALTER TABLE r RENAME COLUMN row_id TO _rowid;
! reserved
DROP TABLE r;
OPTIMIZE d ZORDER BY ();
! write OPTIMIZE
OPTIMIZE d ZORDER BY (id);
