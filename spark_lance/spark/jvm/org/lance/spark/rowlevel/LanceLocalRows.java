package org.lance.spark.rowlevel;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.channels.Channels;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LocalTableScanExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.arrow.ArrowWriter$;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;

/**
 * Converts the rows of a local relation into a stream of Arrow, without a job. Python calls it
 * (spark/table/changing.py).
 */
public final class LanceLocalRows {
  private LanceLocalRows() {}

  /**
   * Returns the rows of a frame as a stream of Arrow, as Python workers receive them.
   *
   * @param maxRows the largest number of rows
   * @return null if only a job can compute the rows, or there are more
   */
  public static byte[] rows(Object frame, int maxRows) {
    Dataset<?> dataset = (Dataset<?>) frame;
    scala.Option<SparkSession> previous = SparkSession.getActiveSession();
    SparkSession.setActiveSession(dataset.sparkSession());
    try {
      SparkPlan plan = dataset.queryExecution().executedPlan();
      if (!(plan instanceof LocalTableScanExec)) {
        return null;
      }
      InternalRow[] rows = plan.executeCollect();
      return rows.length > maxRows ? null : stream(rows, dataset.schema(), plan.conf());
    } finally {
      if (previous.isEmpty()) {
        SparkSession.clearActiveSession();
      } else {
        SparkSession.setActiveSession((SparkSession) previous.get());
      }
    }
  }

  /** Returns rows as a stream of Arrow, in the form in which tasks send rows to Python. */
  public static byte[] stream(InternalRow[] rows, StructType schema, SQLConf conf) {
    ArrowWriter writer =
        ArrowWriter$.MODULE$.create(schema, conf.sessionLocalTimeZone(), true, conf.arrowUseLargeVarTypes());
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    ArrowStreamWriter out = new ArrowStreamWriter(writer.root(), null, Channels.newChannel(bytes));
    try {
      out.start();
      for (InternalRow row : rows) {
        writer.write(row);
      }
      writer.finish();
      out.writeBatch();
      out.end();
    } catch (IOException problem) {
      throw new IllegalStateException(problem);
    } finally {
      out.close();
      writer.root().close();
    }
    return bytes.toByteArray();
  }
}
