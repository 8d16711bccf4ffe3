-- Names in any case, by the setting case_sensitive of a catalog.
SET spark.sql.catalog.any=org.lance.spark.catalog.LanceCatalog;
SET spark.sql.catalog.any.root={root}/any;
SET spark.sql.catalog.any.case_sensitive=no;
SHOW TABLES IN any;
! spark.sql.catalog.any.case_sensitive is true or false, not 'no'
SET spark.sql.catalog.any.case_sensitive=false;
CREATE NAMESPACE any.db;
CREATE NAMESPACE any.DB;
! SCHEMA_ALREADY_EXISTS
CREATE NAMESPACE IF NOT EXISTS any.DB;
SHOW NAMESPACES IN any;
> db
CREATE TABLE any.db.orders (id INT, item STRING);
INSERT INTO any.DB.Orders VALUES (1, 'pen'), (2, 'book');
SELECT id, item FROM any.Db.ORDERS ORDER BY id;
> 1 | pen
> 2 | book
SELECT Orders.id FROM any.db.Orders ORDER BY orders.ID;
> 1
> 2
CREATE TABLE any.db.Orders (id INT);
! orders
CREATE TABLE IF NOT EXISTS any.db.Orders (id INT);
CREATE TABLE any.DB.Orders AS SELECT 1 AS id;
! orders
CREATE TABLE IF NOT EXISTS any.db.Orders AS SELECT 1 AS id;
SHOW TABLES IN any.db LIKE 'ORD*';
> db | orders | False
UPDATE any.db.ORDERS SET item = 'ink' WHERE id = 1;
DELETE FROM any.db.Orders WHERE id = 2;
MERGE INTO any.db.Orders AS t USING (SELECT 3 AS id, 'cup' AS item) AS s ON t.id = s.id
  WHEN NOT MATCHED THEN INSERT *;
INSERT INTO any.db.orderS REPLACE WHERE id = 3 SELECT 3, 'mug';
SELECT * FROM any.db.orders ORDER BY id;
> 1 | ink
> 3 | mug
ALTER TABLE any.db.Orders ADD COLUMN price DOUBLE;
ALTER TABLE any.db.Orders SET TBLPROPERTIES ('k' = 'v');
SHOW TBLPROPERTIES any.db.ORDERS ('k');
> k | v
DESCRIBE TABLE any.db.ORDERS;
~ price | double
DESCRIBE DETAIL any.DB.ORDERS;
~ db$orders
SELECT count(*) > 3 FROM any.Db.Orders.history;
> True
SELECT count(*) FROM any.Db.Orders.HISTORY WHERE version = 1;
> 1
SELECT count(*) FROM any.DB.Orders VERSION AS OF 1;
> 0
CALL any.system.create_branch('DB.Orders', 'dev');
CALL any.system.create_tag(table => 'Db.ORDERS', tag => 'first', version => 2);
INSERT INTO any.db.Orders.branch_dev VALUES (4, 'bag', 2.0);
SELECT count(*) FROM any.db.ORDERS.branch_dev;
> 3
SELECT count(*) FROM any.DB.`Orders@dev`;
> 3
SELECT count(*) FROM any.db.Orders.tag_first;
> 2
SELECT count(*) FROM any.db.Orders.branch_DEV;
! did you mean 'dev'
OPTIMIZE any.db.Orders;
CACHE TABLE any.db.Orders;
INSERT INTO any.db.ORDERS VALUES (5, 'pad', 1.0);
SELECT count(*) FROM any.db.Orders;
> 3
CALL any.system.rollback_to_snapshot('DB.orders', 3);
SELECT count(*) FROM any.db.Orders;
> 2
UNCACHE TABLE any.db.orders;
-- The current namespace, and views.
USE any.DB;
SELECT count(*) FROM ORDERS;
> 2
CREATE OR REPLACE TABLE Orders (id INT);
SHOW TABLES;
> DB | orders | False
CREATE OR REPLACE TABLE ORDERS AS SELECT 7 AS id;
SELECT id FROM orders;
> 7
SHOW TABLES;
> DB | orders | False
CREATE TABLE Copied SHALLOW CLONE ORDERS;
CREATE TABLE copied SHALLOW CLONE orders;
! there is a table copied already
SELECT id FROM COPIED;
> 7
ALTER TABLE copied RENAME TO ORDERS;
! orders
ALTER TABLE COPIED RENAME TO copied;
SHOW TABLES LIKE 'copied';
> DB | copied | False
ALTER TABLE Copied RENAME TO Db.other;
SELECT id FROM OTHER;
> 7
DROP TABLE OTHER;
DROP TABLE IF EXISTS OTHER;
-- Two tables that differ only in case, which somebody made without the setting.
SET spark.sql.catalog.any.case_sensitive=true;
CREATE TABLE any.db.Orders AS SELECT 8 AS id;
SELECT id FROM any.DB.orders;
! TABLE_OR_VIEW_NOT_FOUND
SET spark.sql.catalog.any.case_sensitive=false;
SELECT id FROM orders;
> 7
SELECT id FROM Orders;
> 8
SELECT id FROM ORDERS;
! ORDERS matches db.Orders and db.orders, which differ only in case: write one of these names exactly
DROP TABLE IF EXISTS ORDERS;
! write one of these names exactly
INSERT INTO ORDERS VALUES (1);
! write one of these names exactly
CREATE TABLE ORDERS (id INT);
! write one of these names exactly
DROP TABLE Orders;
SELECT id FROM ORDERS;
> 7
USE spark_catalog.default;
SET spark.sql.caseSensitive=true;
SELECT id FROM any.db.orders;
! needs spark.sql.caseSensitive=false in every session
SET spark.sql.caseSensitive=false;
DROP NAMESPACE any.Db;
! SCHEMA_NOT_EMPTY
DROP NAMESPACE any.DB CASCADE;
SHOW NAMESPACES IN any;
