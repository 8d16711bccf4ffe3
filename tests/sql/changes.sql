-- Changes of columns and rows, and tables by path.
CREATE TABLE lance.`{root}/outside` AS SELECT id, cast(id AS STRING) AS s FROM range(4);
SELECT count(*), max(s) FROM lance.`{root}/outside`;
> 4 | 3
INSERT INTO lance.`{root}/outside` VALUES (9, 'nine');
DELETE FROM lance.`{root}/outside` WHERE id IN (0, 1);
SELECT id FROM lance.`{root}/outside` ORDER BY id;
> 2
> 3
> 9
DROP TABLE lance.`{root}/outside`;
! is a path
CREATE TABLE lance.t AS SELECT 1 AS id, 'a' AS name;
ALTER TABLE lance.t ADD COLUMN w INT COMMENT 'new';
ALTER TABLE lance.t RENAME COLUMN name TO label;
ALTER TABLE lance.t ALTER COLUMN id TYPE BIGINT;
ALTER TABLE lance.t SET TBLPROPERTIES ('k' = 'v');
ALTER TABLE lance.t ADD COLUMN x INT FIRST;
! adds columns at the end
SELECT id, label, w FROM lance.t;
> 1 | a | None
SHOW TBLPROPERTIES lance.t ('k');
> k | v
ALTER TABLE lance.t DROP COLUMN w;
INSERT INTO lance.t REPLACE WHERE id = 1 VALUES (1, 'b');
SELECT * FROM lance.t;
> 1 | b
INSERT INTO lance.t (label, id) VALUES ('c', 2);
DELETE FROM lance.t WHERE label = 'b';
SELECT * FROM lance.t;
> 2 | c
