// Rows that Spark's plan already has, so that no job has to find them: as a stream of Arrow, for the driver's Python.
//
// Compiled in the driver by Janino.

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
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.execution.arrow.ArrowWriter$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;

public final class LanceAtHand {
  private LanceAtHand() {}

  // The rows of a frame as Python workers would get them; null if a job has to find them, or they are too many.
  public static byte[] rows(Object given, int most) {
    Dataset frame = (Dataset) given;
    scala.Option before = SparkSession.getActiveSession();
    SparkSession.setActiveSession(frame.sparkSession());
    try {
      SparkPlan plan = frame.queryExecution().executedPlan();
      if (!(plan instanceof LocalTableScanExec)) {
        return null;
      }
      InternalRow[] found = plan.executeCollect();
      return found.length > most ? null : stream(found, frame.schema(), plan.conf());
    } finally {
      if (before.isEmpty()) {
        SparkSession.clearActiveSession();
      } else {
        SparkSession.setActiveSession((SparkSession) before.get());
      }
    }
  }

  // Rows as a stream of Arrow, as tasks hand them to Python.
  public static byte[] stream(InternalRow[] rows, StructType schema, SQLConf conf) {
    ArrowWriter writer =
        ArrowWriter$.MODULE$.create(schema, conf.sessionLocalTimeZone(), true, conf.arrowUseLargeVarTypes());
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    ArrowStreamWriter out = new ArrowStreamWriter(writer.root(), null, Channels.newChannel(bytes));
    try {
      out.start();
      for (int i = 0; i < rows.length; i++) {
        writer.write(rows[i]);
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
