-- Temporary views of tables, and what Spark's own catalog is refused.
CREATE TABLE own (a INT) USING lance;
! Spark's own catalog cannot keep Lance tables
CREATE TABLE own USING lance AS SELECT 1 AS a;
! Spark's own catalog cannot keep Lance tables
CREATE TABLE lance.`{root}/seen` AS SELECT 1L AS a;
CREATE TEMPORARY VIEW seen USING lance OPTIONS (path '{root}/seen');
SELECT count(*) FROM seen;
> 1
INSERT INTO seen SELECT 7;
SELECT sum(a) FROM seen;
> 8
INSERT INTO seen SELECT a + 100 FROM seen;
SELECT count(*), max(a) FROM seen;
> 4 | 107
INSERT INTO lance.`{root}/seen` VALUES (5);
SELECT count(*) FROM seen;
> 4
REFRESH TABLE seen;
SELECT count(*) FROM seen;
> 5
REFRESH TABLE lance.`{root}/seen`;
DROP VIEW seen;
