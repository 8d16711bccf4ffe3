package org.lance.spark.load;

/**
 * Statements that have another form here. Each row has the pattern of a statement's beginning and the form to write. The
 * first group of a pattern is the table.
 */
public final class LanceForms {
  public static final String NAME = "(?:`(?:[^`]|``)+`|\\w+)";
  public static final String NAMES = "(" + NAME + "(?:\\." + NAME + ")*";
  // A name, or a path in quotes.
  public static final String TABLE = "\\s+(?:TABLE\\s+)?" + NAMES + "|'[^']+'|\"[^\"]+\")";
  public static final String ALTER = "ALTER\\s+TABLE\\s+" + NAMES + ")\\s+";
  // The beginning of a statement that does not parse as a whole, and the form to write.
  public static final String[][] FORMS = {
    {"OPTIMIZE" + TABLE, "OPTIMIZE %s [FULL] [WHERE condition] [ZORDER BY (columns)]"},
    {"VACUUM" + TABLE + "\\s+USING\\s+INVENTORY\\b", "VACUUM %s, as it lists the table's files itself"},
    {"VACUUM" + TABLE, "VACUUM %s [RETAIN number HOURS] [DRY RUN]"},
    {"RESTORE" + TABLE, "RESTORE TABLE %s TO VERSION AS OF number or 'tag', or TIMESTAMP AS OF 'time'"},
    {"REORG" + TABLE + "\\s+APPLY\\s*\\(\\s*UPGRADE\\b",
      "CREATE TABLE other USING iceberg AS SELECT * FROM %s, as it has no metadata of other formats"},
    {"REORG" + TABLE, "REORG TABLE %s [WHERE condition] APPLY (PURGE)"},
    {"GENERATE\\s+\\w+\\s+FOR" + TABLE, "SELECT file_path FROM %s.data_files, as there is no other list of files"},
    {"(?:CREATE\\s+(?:OR\\s+REPLACE\\s+)?|REPLACE\\s+)TABLE\\s+(?:IF\\s+NOT\\s+EXISTS\\s+)?" + NAMES
      + ")\\s+(?:SHALLOW\\s+|DEEP\\s+)?CLONE\\b",
      "CREATE [OR REPLACE] TABLE [IF NOT EXISTS] %s [SHALLOW | DEEP] CLONE source [VERSION AS OF number | TIMESTAMP AS OF "
        + "'time'] [TBLPROPERTIES (...)]"},
    {ALTER + "CLUSTER\\s+BY\\b", "ALTER TABLE %s CLUSTER BY (columns), or CLUSTER BY NONE"},
    {"(?:CREATE\\s+(?:OR\\s+REPLACE\\s+)?|REPLACE\\s+)TABLE\\s+(?:IF\\s+NOT\\s+EXISTS\\s+)?" + NAMES + ").*\\bCLUSTER\\s+BY\\s+AUTO\\b",
      "CREATE TABLE %s ... CLUSTER BY (columns)"},
    {ALTER + "WRITE\\b", "ALTER TABLE %s WRITE [LOCALLY] ORDERED BY columns, WRITE DISTRIBUTED BY PARTITION, or WRITE UNORDERED"},
    {"DESC(?:RIBE)?\\s+HISTORY" + TABLE, "SELECT * FROM %s.history [WHERE condition] [LIMIT number]"},
    {"DESC(?:RIBE)?\\s+DETAIL" + TABLE, "DESCRIBE DETAIL %s"},
    {ALTER + "(?:SET|DROP)\\s+IDENTIFIER\\s+FIELDS\\b", "ALTER TABLE %s SET | DROP IDENTIFIER FIELDS column, ..."},
    {"CONVERT\\s+TO\\s+\\w+\\s+" + NAMES + ")", "CONVERT TO LANCE %s [NO STATISTICS] [PARTITIONED BY (column type, ...)]"},
    {"CONVERT\\s+TO\\s+\\w+\\s+['\"]([^'\"]+)['\"]", "CONVERT TO LANCE parquet.`%s`"},
    {"FSCK\\s+REPAIR" + TABLE, "CALL <catalog>.system.verify('%s')"},
    {"COPY\\s+INTO" + TABLE, "INSERT INTO %s SELECT * FROM parquet.`/path`"},
    {ALTER + "(?:ADD|DROP|REPLACE)\\s+PARTITION\\s+FIELD\\b",
      "ALTER TABLE %1$s ADD PARTITION FIELD transform [AS name], DROP PARTITION FIELD transform, or "
        + "REPLACE PARTITION FIELD transform WITH transform [AS name]"},
    {".*\\bFROM\\s+" + NAMES + ")\\s+CHANGES\\s+FROM\\s+(?:VERSION|TIMESTAMP)\\b",
      "SELECT * FROM table_changes('%s', start[, end]), where both are versions or times"},
    {"CREATE\\s+UNIQUE\\s+INDEX\\b.*?\\s+ON\\s+(?:TABLE\\s+)?" + NAMES + ")",
      "ALTER TABLE %s SET TBLPROPERTIES ('primary_key' = 'column'), as its indexes allow equal values"},
    {ALTER + "ADD\\s+COLUMNS?\\s+([^()]+?)\\s+FROM\\s+" + NAMES + ")",
      "CALL <catalog>.system.add_columns_from('%1$s', source => '%3$s', keys => '<key columns>', columns => '%2$s')"},
    {"CREATE\\s+(?:OR\\s+REPLACE\\s+)?INDEX\\b.*?\\s+ON\\s+(?:TABLE\\s+)?" + NAMES + ")",
      "CREATE [OR REPLACE] INDEX [IF NOT EXISTS] name ON %s [USING type] (column) [OPTIONS (name = value, ...)]"},
    {ALTER + "CREATE\\s+(?:OR\\s+REPLACE\\s+)?INDEX\\b",
      "ALTER TABLE %s CREATE [OR REPLACE] INDEX [IF NOT EXISTS] name [USING type] (column) [WITH (name = value, ...)]"},
    {ALTER + "ADD\\s+CONSTRAINT\\b", "ALTER TABLE %s ADD CONSTRAINT name CHECK (condition)"},
    {ALTER + "RENAME\\s+BRANCH\\s+`?([\\w.-]+)`?\\s+TO\\s+(" + NAME + ")",
      "ALTER TABLE %1$s.`branch_%2$s` CREATE BRANCH %3$s, as a branch keeps its name"},
    {ALTER + "RENAME\\s+TAG\\s+(" + NAME + ")\\s+TO\\s+(" + NAME + ")",
      "ALTER TABLE %1$s CREATE TAG %3$s AS OF VERSION number, and then ALTER TABLE %1$s DROP TAG %2$s"},
    {"UNDROP" + TABLE, "CREATE TABLE %s DEEP CLONE copy, as DROP TABLE deletes the files of a table"},
    {"CREATE\\s+EXTERNAL\\s+TABLE\\s+(.*\\bCLONE\\b.*[^\\s;])", "CREATE TABLE %s"},
    {"TABLE\\s+" + NAMES + ")\\s+((?:FOR\\s+)?(?:SYSTEM_)?(?:VERSION|TIMESTAMP|TIME)\\s+AS\\s+OF\\s+.*[^\\s;])", "SELECT * FROM %1$s %2$s"},
    {"REPAIR" + TABLE, "SHOW PARTITIONS %s, as a Lance table lists its partitions itself"},
    {ALTER + "FAST\\s+FORWARD\\b", "CALL <catalog>.system.fast_forward('%s', 'main', 'branch')"},
    {ALTER + "(?:EXECUTE\\s+OPTIMIZE|COMPACT)\\b", "OPTIMIZE %s"},
    {"ANALYZE\\s+TABLE\\s+" + NAMES + ")\\s+COMPUTE\\s+DELTA\\b", "ANALYZE TABLE %s COMPUTE STATISTICS"},
    {ALTER + "DROP\\s+FEATURE\\b", "REORG TABLE %s APPLY (PURGE), which removes deletion vectors, as there are no other features to drop"},
    {ALTER + "SET\\s+WRITE\\s+DISTRIBUTION\\b",
      "ALTER TABLE %s WRITE DISTRIBUTED BY PARTITION, WRITE [LOCALLY] ORDERED BY columns, or WRITE UNORDERED"},
    {ALTER + "(?:SET|UNSET)\\s+MANAGED\\b", "CREATE TABLE other DEEP CLONE %s, as a Lance table stays where it is"},
    {ALTER + "SET\\s+FILEFORMAT\\b", "CREATE TABLE spark_catalog.default.other USING parquet AS SELECT * FROM %s"},
    {ALTER + "(?:SET|UNSET)\\s+(?:TAGS|OWNER)\\b", "ALTER TABLE %s SET TBLPROPERTIES ('name' = 'value')"},
    {ALTER + "(?:ENABLE|DISABLE|INHERIT)\\s+PREDICTIVE\\b", "OPTIMIZE %1$s, and then VACUUM %1$s"},
    {ALTER + "DROP\\s+PRIMARY\\s+KEY\\b", "ALTER TABLE %s DROP CONSTRAINT name"},
    {ALTER + "SET\\s+ROW\\s+FILTER\\b", "CREATE TEMPORARY VIEW name AS SELECT * FROM %s WHERE condition"},
    {ALTER + "CHANGE\\s+(?:COLUMN\\s+)?(" + NAME + ")\\s+(?!(?:\\2|TYPE|SET|DROP|COMMENT|FIRST|AFTER|SYNC)\\b)(" + NAME + ")\\s+\\w+",
      "ALTER TABLE %1$s RENAME COLUMN %2$s TO %3$s"},
    {ALTER + "ADD\\s+COLUMNS?\\s+IF\\s+NOT\\s+EXISTS\\s+(.*[^\\s;])", "ALTER TABLE %1$s ADD COLUMN %2$s"},
    {"UPDATE\\s+" + NAMES + ")(?:\\s+(?:AS\\s+)?(?!SET\\b)" + NAME + ")?\\s+SET\\b.*\\bFROM\\b",
      "MERGE INTO %s AS t USING source AS s ON t.key = s.key WHEN MATCHED THEN UPDATE SET column = s.column"},
    {"DELETE\\s+FROM\\s+" + NAMES + ")(?:\\s+(?:AS\\s+)?(?!USING\\b)" + NAME + ")?\\s+USING\\b",
      "MERGE INTO %s AS t USING source AS s ON t.key = s.key WHEN MATCHED THEN DELETE"},
    {"INSERT\\s+INTO\\s+(?:TABLE\\s+)?" + NAMES + ").*\\bON\\s+(?:CONFLICT|DUPLICATE\\s+KEY)\\b",
      "MERGE INTO %s AS t USING source AS s ON t.key = s.key WHEN NOT MATCHED THEN INSERT *"},
    {"(?:UPSERT|REPLACE|APPLY\\s+CHANGES)\\s+INTO\\s+(?:TABLE\\s+)?" + NAMES + ")",
      "MERGE INTO %s AS t USING source AS s ON t.key = s.key WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"},
    {"CREATE\\s+BLOOMFILTER\\s+INDEX\\s+ON" + TABLE + "\\s+FOR\\s+COLUMNS\\s*\\(\\s*(" + NAME + ")",
      "CREATE INDEX name ON %1$s USING bloomfilter (%2$s)"},
    {"SHOW\\s+(?:BRANCHES|TAGS)\\s+(?:(?:FROM|IN|ON)\\s+)?" + NAMES + ")", "SELECT * FROM %s.refs"},
    {"SHOW\\s+SNAPSHOTS\\s+(?:(?:FROM|IN|ON)\\s+)?" + NAMES + ")", "SELECT * FROM %s.snapshots"},
    {"SHOW\\s+HISTORY\\s+(?:(?:FROM|IN|FOR)\\s+)?" + NAMES + ")", "DESCRIBE HISTORY %s"},
    {ALTER + "(?:CREATE|DROP|REPLACE)\\s+(?:OR\\s+REPLACE\\s+)?(?:TAG|BRANCH)\\b",
      "ALTER TABLE %s CREATE [OR REPLACE] TAG | BRANCH [IF NOT EXISTS] name [AS OF VERSION number] [RETAIN number DAYS], "
        + "or DROP TAG | BRANCH [IF EXISTS] name"},
  };
  // Statements that Spark's grammar has, and that Spark refuses for tables of catalogs.
  public static final String[][] REFUSED = {
    {"(?:MSCK\\s+)?REPAIR" + TABLE, "SHOW PARTITIONS %s, as a Lance table lists its partitions itself"},
    {ALTER + "RECOVER\\s+PARTITIONS\\b", "SHOW PARTITIONS %s, as a Lance table lists its partitions itself"},
    {ALTER + "SET\\s+SERDE(?:PROPERTIES)?\\b", "ALTER TABLE %s SET TBLPROPERTIES ('name' = 'value')"},
    {"LOAD\\s+DATA\\b.*\\bINTO\\s+TABLE\\s+" + NAMES + ")", "INSERT INTO %s SELECT * FROM parquet.`/path`"},
    {ALTER + "(?:ALTER|CHANGE)\\s+(?:COLUMN\\s+)?(" + NAME + ")\\s+SET\\s+NOT\\s+NULL\\b",
      "ALTER TABLE %1$s ADD CONSTRAINT name CHECK (%2$s IS NOT NULL)"},
  };

  private LanceForms() {}
}
