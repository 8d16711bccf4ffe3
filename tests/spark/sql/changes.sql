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
ALTER TABLE lance.t DROP COLUMN x;
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
CREATE TABLE lance.nested (id INT, st STRUCT<x: INT, y: STRUCT<z: STRING>>, l ARRAY<STRUCT<p: INT>>)
  TBLPROPERTIES ('data_storage_version' = '2.2');
INSERT INTO lance.nested VALUES (1, named_struct('x', 1, 'y', named_struct('z', 'a')), array(named_struct('p', 1)));
ALTER TABLE lance.nested ADD COLUMNS (st.w BIGINT COMMENT 'inner', st.y.q DATE, l.element.r STRING);
INSERT INTO lance.nested VALUES (2, named_struct('x', 2, 'y', named_struct('z', 'b', 'q', DATE'2024-02-29'), 'w', 7L),
  array(named_struct('p', 2, 'r', 's')));
SELECT id, st.x, st.w, st.y.z, st.y.q, l[0].p, l[0].r FROM lance.nested ORDER BY id;
> 1 | 1 | None | a | None | 1 | None
> 2 | 2 | 7 | b | 2024-02-29 | 2 | s
ALTER TABLE lance.nested RENAME COLUMN st.y.z TO zz;
ALTER TABLE lance.nested RENAME COLUMN l.element.p TO pp;
ALTER TABLE lance.nested DROP COLUMNS (st.w, l.element.r);
ALTER TABLE lance.nested ALTER COLUMN st.x TYPE BIGINT;
ALTER TABLE lance.nested ALTER COLUMN st.x COMMENT 'a number';
SELECT st.x, st.y.zz, l[0].pp FROM lance.nested ORDER BY id;
> 1 | a | 1
> 2 | b | 2
SELECT st.w FROM lance.nested;
! FIELD_NOT_FOUND
ALTER TABLE lance.nested ADD COLUMN st.x INT;
! ALREADY_EXISTS
ALTER TABLE lance.nested ADD COLUMN st.k INT NOT NULL;
! NOT NULL
ALTER TABLE lance.nested ADD COLUMN st.k INT DEFAULT 1;
! only columns have defaults
ALTER TABLE lance.nested DROP COLUMN st.nope;
! cannot be resolved
ALTER TABLE lance.nested DROP COLUMN IF EXISTS st.nope;
CREATE TABLE lance.older (st STRUCT<x: INT>) TBLPROPERTIES ('data_storage_version' = '2.0');
INSERT INTO lance.older VALUES (named_struct('x', 1));
ALTER TABLE lance.older ADD COLUMN st.y INT;
! from 2.2 on
-- What is replaced is said by conditions of all types; none replaces less than it says.
CREATE TABLE lance.rw (id INT, d DATE, t TIMESTAMP, n TIMESTAMP_NTZ, c DECIMAL(9, 2), s STRING, b BINARY, f DOUBLE,
  st STRUCT<x: INT>);
INSERT INTO lance.rw VALUES (1, date'2024-02-29', timestamp'2024-02-29 12:00:00', timestamp_ntz'2024-02-29 12:00:00', 1.5,
  "it's", X'FF', 0.5, named_struct('x', 1)), (2, date'1969-12-31', timestamp'1969-12-31 23:59:59.999999',
  timestamp_ntz'1969-12-31 23:59:59.999999', -1.5, 'b', X'01', -0.5, NULL);
INSERT INTO lance.rw REPLACE WHERE d = date'2024-02-29' SELECT * FROM lance.rw WHERE d = date'2024-02-29';
INSERT INTO lance.rw REPLACE WHERE d < date'2000-01-01' OR d IN (date'2024-02-28', date'2024-02-29') SELECT * FROM lance.rw WHERE d < date'2000-01-01' OR d IN (date'2024-02-28', date'2024-02-29');
INSERT INTO lance.rw REPLACE WHERE t >= timestamp'2024-02-29 12:00:00' SELECT * FROM lance.rw WHERE t >= timestamp'2024-02-29 12:00:00';
INSERT INTO lance.rw REPLACE WHERE t < timestamp'1970-01-01 00:00:00' SELECT * FROM lance.rw WHERE t < timestamp'1970-01-01 00:00:00';
INSERT INTO lance.rw REPLACE WHERE n BETWEEN timestamp_ntz'1960-01-01 00:00:00' AND timestamp_ntz'2024-02-29 12:00:00' SELECT * FROM lance.rw WHERE n BETWEEN timestamp_ntz'1960-01-01 00:00:00' AND timestamp_ntz'2024-02-29 12:00:00';
INSERT INTO lance.rw REPLACE WHERE c = 1.5BD SELECT * FROM lance.rw WHERE c = 1.5BD;
INSERT INTO lance.rw REPLACE WHERE s = "it's" SELECT * FROM lance.rw WHERE s = "it's";
INSERT INTO lance.rw REPLACE WHERE s LIKE 'it%' OR st.x IS NULL SELECT * FROM lance.rw WHERE s LIKE 'it%' OR st.x IS NULL;
INSERT INTO lance.rw REPLACE WHERE endswith(s, "'s") OR contains(s, 'b') SELECT * FROM lance.rw WHERE endswith(s, "'s") OR contains(s, 'b');
INSERT INTO lance.rw REPLACE WHERE b = X'FF' SELECT * FROM lance.rw WHERE b = X'FF';
INSERT INTO lance.rw REPLACE WHERE f > 0.25D AND NOT (id = 7) SELECT * FROM lance.rw WHERE f > 0.25D AND NOT (id = 7);
INSERT INTO lance.rw REPLACE WHERE id % 2 = 0 SELECT * FROM lance.rw;
! REPLACE WHERE takes comparisons
SELECT id, count(*) FROM lance.rw GROUP BY id ORDER BY id;
> 1 | 1
> 2 | 1
SELECT count(*) FROM lance.rw.history WHERE version > 2;
> 11
ALTER TABLE lance.rw REPLACE COLUMNS (id INT);
! REPLACE COLUMNS would lose the values of
CREATE TABLE lance.rc (a STRING COMMENT 'one', b STRUCT<x: INT, y: INT>, c INT NOT NULL, l ARRAY<STRUCT<x: INT, y: INT>>) TBLPROPERTIES ('data_storage_version' = '2.2');
INSERT INTO lance.rc VALUES ('a', struct(1, 2), 3, array(struct(4, 5)));
ALTER TABLE lance.rc REPLACE COLUMNS (c INT, l ARRAY<STRUCT<y: INT, x: INT>>, new INT COMMENT 'two', b STRUCT<y: INT, z: STRING, x: INT>, a STRING);
SELECT * FROM lance.rc;
> 3 | [Row(y=5, x=4)] | None | Row(y=2, z=None, x=1) | a
DESCRIBE lance.rc;
> c | int | None
> l | array<struct<y:int,x:int>> | None
> new | int | two
> b | struct<y:int,z:string,x:int> | None
> a | string | None
ALTER TABLE lance.rc REPLACE COLUMNS (a STRING, b STRUCT<x: INT, y: INT>, c BIGINT, l ARRAY<STRUCT<x: INT, y: INT>>, new INT);
! ALTER TABLE lance.rc DROP COLUMN b.z
ALTER TABLE lance.rc DROP COLUMN b.z;
ALTER TABLE lance.rc REPLACE COLUMNS (a STRING, B STRUCT<x: INT, y: INT>, c BIGINT, l ARRAY<STRUCT<x: INT, y: INT>>, new INT);
SELECT * FROM lance.rc;
> a | Row(x=1, y=2) | 3 | [Row(x=4, y=5)] | None
SELECT typeof(c) FROM lance.rc;
> bigint
ALTER TABLE lance.rc REPLACE COLUMNS (a STRING, b STRUCT<x: INT, y: INT>, c DATE, l ARRAY<STRUCT<x: INT, y: INT>>, new INT);
! c
SELECT * FROM lance.rc;
> a | Row(x=1, y=2) | 3 | [Row(x=4, y=5)] | None
DROP TABLE lance.rc;
ALTER TABLE lance.rw ADD COLUMNS (one INT, two INT NOT NULL);
! drop NOT NULL
SHOW TABLE EXTENDED IN lance LIKE 'rw';
~ rw
SELECT one FROM lance.rw;
! UNRESOLVED_COLUMN
