package org.lance.spark.catalog;

import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.ChangelogRange;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.lance.spark.load.Bridge;
import org.lance.spark.shim.Callers;

/**
 * The catalog that answers {@code SELECT ... FROM t CHANGES FROM VERSION 1} (Spark 4.2 and newer).
 *
 * <p>The changes are those of the option readChangeFeed. For netChanges Spark drops rows that were inserted and
 * deleted, by the primary key.
 */
public class LanceChangelogCatalog extends LanceViewCatalog {
  public Changelog loadChangelog(Identifier identifier, ChangelogContext context, CaseInsensitiveStringMap options) {
    return new Changes((LanceTable) loadTable(identifier), context, options);
  }

  /** The changes of a table in a range of its versions. */
  public static final class Changes implements Changelog {
    private static final String[] SPARK_OPTIONS = {
      "startingVersion", "endingVersion", "startingTimestamp", "endingTimestamp", "startingBoundInclusive",
      "endingBoundInclusive", "deduplicationMode", "computeUpdates"
    };
    private final String displayName;
    private final LanceTable table;
    private final LanceTable changes;
    private final Map<String, String> range;
    private final NamedReference[] key;
    private final boolean isNet;

    Changes(LanceTable table, ChangelogContext context, CaseInsensitiveStringMap options) {
      this.table = table;
      this.displayName = table.name();
      this.range = range(context.range());
      this.isNet = context.deduplicationMode() == ChangelogContext.DeduplicationMode.NET_CHANGES;
      String names = (String) table.properties().get("primary_key");
      this.key = key(names);
      boolean isIdentified = names != null || "true".equals(table.properties().get("enable_stable_row_ids"));
      if (isNet && names == null) {
        throw new IllegalArgumentException("netChanges needs a primary key, and " + displayName
            + " declares none: CALL " + displayName.split("\\.")[0] + ".system.create_changelog_view(table => '"
            + displayName.substring(displayName.indexOf('.') + 1) + "', net_changes => true)");
      }
      if (context.computeUpdates() && !isIdentified) {
        throw new IllegalArgumentException("computeUpdates needs a primary key or stable row ids, and " + displayName
            + " has neither: read the changes without it, or create the table with 'enable_stable_row_ids' = 'true'");
      }
      this.changes = table.changes(withRange(options), false);
    }

    private static NamedReference[] key(String names) {
      String[] columns = names == null ? new String[0] : names.split(",");
      NamedReference[] key = new NamedReference[columns.length];
      for (int i = 0; i < key.length; i++) {
        key[i] = Expressions.column("`" + columns[i].trim() + "`");
      }
      return key;
    }

    private static Map<String, String> range(ChangelogRange range) {
      Map<String, String> options = new HashMap<>();
      options.put("readChangeFeed", "true");
      if (range instanceof ChangelogRange.VersionRange) {
        ChangelogRange.VersionRange versions = (ChangelogRange.VersionRange) range;
        options.put("startingVersion", version(versions.startingVersion(), range.startingBoundInclusive() ? 0 : 1));
        if (versions.endingVersion().isPresent()) {
          String end = (String) versions.endingVersion().get();
          options.put("endingVersion", version(end, range.endingBoundInclusive() ? 0 : -1));
        }
      } else if (range instanceof ChangelogRange.TimestampRange) {
        ChangelogRange.TimestampRange times = (ChangelogRange.TimestampRange) range;
        options.put("startingTimestamp", time(times.startingTimestamp(), range.startingBoundInclusive() ? 0 : 1));
        if (times.endingTimestamp().isPresent()) {
          long end = (Long) times.endingTimestamp().get();
          options.put("endingTimestamp", time(end, range.endingBoundInclusive() ? 0 : -1));
        }
      } else {
        options.put("startingVersion", "0");
      }
      return options;
    }

    private static String version(String number, int change) {
      try {
        return Long.toString(Long.parseLong(number.trim()) + change);
      } catch (NumberFormatException problem) {
        throw new IllegalArgumentException("changes are read between numbers of versions, not '" + number + "'");
      }
    }

    private static String time(long micros, int change) {
      return Instant.EPOCH.plus(micros + change, ChronoUnit.MICROS).toString();
    }

    private CaseInsensitiveStringMap withRange(CaseInsensitiveStringMap options) {
      Map<String, String> all = new HashMap<>();
      for (Map.Entry<String, String> option : options.asCaseSensitiveMap().entrySet()) {
        boolean isSparkOption = false;
        for (String name : SPARK_OPTIONS) {
          isSparkOption |= name.equalsIgnoreCase((String) option.getKey());
        }
        if (!isSparkOption) {
          all.put(option.getKey(), option.getValue());
        }
      }
      all.putAll(range);
      return new CaseInsensitiveStringMap(all);
    }

    public String name() {
      return displayName;
    }

    public Column[] columns() {
      return changes.columns();
    }

    public boolean containsCarryoverRows() {
      return false;
    }

    // Spark uses this only for netChanges.
    public boolean containsIntermediateChanges() {
      return isNet;
    }

    public boolean representsUpdateAsDeleteAndInsert() {
      return false;
    }

    public NamedReference[] rowId() {
      return key;
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      if (Callers.isMicroBatch()) {
        return table.changes(withRange(options), true).newScanBuilder(Bridge.zoned(withRange(options)));
      }
      return changes.newScanBuilder(Bridge.zoned(withRange(options)));
    }
  }
}
