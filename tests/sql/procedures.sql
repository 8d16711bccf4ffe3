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
