-- needs Spark 4.1: it has no WITH RECURSIVE before
-- Recursive queries: each turn runs the same scan with keys of its own.
CREATE NAMESPACE lance.db;
CREATE TABLE lance.db.routes (origin STRING, destination STRING);
INSERT INTO lance.db.routes VALUES ('York', 'Leeds'), ('York', 'Hull');
INSERT INTO lance.db.routes VALUES ('Hull', 'York'), ('Leeds', 'Hull'), ('Leeds', 'Ripon');
SET spark.lance.localRows = 0;
WITH RECURSIVE trips AS (
  SELECT 'York' AS destination, ARRAY('York') AS path
  UNION ALL
  SELECT r.destination, CONCAT(t.path, ARRAY(r.destination)) FROM lance.db.routes AS r
  JOIN trips AS t ON t.destination = r.origin AND NOT ARRAY_CONTAINS(t.path, r.destination)
) SELECT ARRAY_JOIN(path, '-') AS trip FROM trips ORDER BY trip;
> York
> York-Hull
> York-Leeds
> York-Leeds-Hull
> York-Leeds-Ripon
CALL lance.system.create_index('db.routes', 'origin');
WITH RECURSIVE reached AS (
  SELECT 'Leeds' AS place, 0 AS turn
  UNION ALL
  SELECT r.destination, turn + 1 FROM reached JOIN lance.db.routes AS r ON r.origin = place WHERE turn < 3
) SELECT turn, place, COUNT(*) FROM reached GROUP BY ALL ORDER BY turn, place;
> 0 | Leeds | 1
> 1 | Hull | 1
> 1 | Ripon | 1
> 2 | York | 1
> 3 | Hull | 1
> 3 | Leeds | 1
SET spark.lance.localRows = 10000;
