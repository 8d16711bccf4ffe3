package org.lance.spark.transport;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.FileStore;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.FileAttribute;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import org.apache.arrow.memory.util.MemoryUtil;
import org.apache.spark.unsafe.Platform;
import org.slf4j.LoggerFactory;

/**
 * Shared memory through which a Python worker hands batches to the task that started it, instead of the socket.
 *
 * <p>The executor makes a file in memory, and unlinks its name before it has any content. The worker opens it by the
 * executor's own descriptor (/proc/PID/fd/N). The worker writes a batch into it and notes its place in a record. Then
 * it sends a batch without rows on the socket, which says that the next record is ready. Any other batch on the socket
 * is a batch itself. The executor reads columns in place, and writes the number of the last batch that it has
 * finished. All numbers have the machine's byte order, the lowest first:
 *
 * <pre>
 *     0     magic, 8 bytes
 *     8     key of the lease, 16 bytes
 *     64    number of the last batch that the executor is done with, 8 bytes; the first is 1
 *     1024  64 records of 32 bytes, that of batch n at n % 64: n, offset and length of its message, 0; 8 bytes each
 *     3072  what the worker has read so far: lines of text, ended by a byte of 0
 *     4096  messages, wherever the worker puts them: Arrow's encapsulated form of a record batch (-1 and the length of
 *           the metadata, 4 bytes each; the metadata, a flatbuffer; the buffers)
 * </pre>
 *
 * <p>spark/worker/transport.py is the worker's side. Files are used for one task after the other, and are never
 * unmapped while anybody may read from them: a read after that sees wrong bytes, and the process does not end. A worker
 * holds a lock of the file (fcntl) while it may write. The executor gives a file to the next task only when it could
 * have that lock, and writes a new key under the lock. A worker looks for its key under the lock. So no two workers ever
 * write.
 *
 * <p>LanceTransport sends the class to executors.
 */
public final class LanceRing {
  private static final String FOLDER = "/dev/shm";
  private static final String PREFIX = "spark-lance-";
  private static final byte[] MAGIC = "LANCRING".getBytes(StandardCharsets.US_ASCII);
  private static final long KEY = 8;
  private static final long LAST_READ = 64;
  private static final long RECORDS = 1024;
  private static final long RECORD = 32;
  private static final long MAX_RECORDS = 64;
  private static final long COUNTS = 3072;
  private static final int HEADER = 4096;
  // An older name belongs to a process that ended between creating and unlinking the file.
  private static final long STALE_MS = 60000L;
  // After a failure, no memory is requested for this time.
  private static final long RETRY_NS = 60000000000L;
  // A task that Spark ended may go on reading for this time, so the memory is not reused before.
  private static final long REUSE_DELAY_NS = 2000000000L;
  // Regions that are not leased, and the number of all regions.
  private static final List<LanceRing.Region> FREE = new ArrayList<>();
  private static int regions = 0;
  private static long failureTime = System.nanoTime() - RETRY_NS;
  private static boolean isLogged = false;

  /** A file in memory. */
  private static final class Region {
    private final FileChannel channel;
    private final MappedByteBuffer buffer;
    private final long address;
    private final long size;
    // The path of the file for other processes.
    private final String path;
    private long reusableFrom = System.nanoTime();

    Region(FileChannel channel, long size, String path) throws IOException {
      this.channel = channel;
      this.buffer = channel.map(FileChannel.MapMode.READ_WRITE, 0L, size);
      this.address = MemoryUtil.getByteBufferAddress(buffer);
      this.size = size;
      this.path = path;
    }

    /**
     * Takes the region for a new key if no worker may write any more.
     *
     * @return false if a worker holds its lock, or an ended task may still read
     */
    boolean tryLease(byte[] key) throws IOException {
      if (System.nanoTime() - reusableFrom < 0) {
        return false;
      }
      FileLock lock = channel.tryLock();
      if (lock == null) {
        return false;
      }
      try {
        Platform.setMemory(address, (byte) 0, HEADER);
        Platform.copyMemory(MAGIC, Platform.BYTE_ARRAY_OFFSET, null, address, MAGIC.length);
        Platform.copyMemory(key, Platform.BYTE_ARRAY_OFFSET, null, address + KEY, key.length);
      } finally {
        lock.release();
      }
      return true;
    }
  }

  private final byte[] key;
  // Null after the task has ended.
  private Region region;
  private long number = 0L;

  private LanceRing(byte[] key, Region region) {
    this.key = key;
    this.region = region;
  }

  /**
   * Leases memory for one task.
   *
   * @param size bytes
   * @return null if there is no memory; then the worker sends batches on the socket
   */
  public static synchronized LanceRing lease(long size) {
    if (size <= HEADER || System.nanoTime() - failureTime < RETRY_NS) {
      return null;
    }
    try {
      byte[] key = ByteBuffer.allocate(16).putLong(bits()).putLong(bits()).array();
      Region region = findFree(size, key);
      if (region == null && regions < 2 * Math.max(4, Runtime.getRuntime().availableProcessors())) {
        region = createRegion(size);
        if (region == null || !region.tryLease(key)) {
          throw new IOException("there is too little memory in " + FOLDER + ", or no way to it");
        }
        regions++;
      }
      return region == null ? null : new LanceRing(key, region);
    } catch (IOException problem) {
      return logRefusal(problem);
    } catch (RuntimeException problem) {
      return logRefusal(problem);
    } catch (LinkageError problem) {
      return logRefusal(problem);
    }
  }

  private static long bits() {
    return UUID.randomUUID().getMostSignificantBits();
  }

  private static LanceRing logRefusal(Throwable problem) {
    failureTime = System.nanoTime();
    if (!isLogged) {
      isLogged = true;
      LoggerFactory.getLogger("spark_lance")
          .info("Python workers send Lance tables by their sockets, without shared memory: " + problem);
    }
    return null;
  }

  private static Region findFree(long size, byte[] key) throws IOException {
    for (Iterator<LanceRing.Region> all = FREE.iterator(); all.hasNext(); ) {
      Region region = (Region) all.next();
      if (region.size != size) {
        // The setting has changed. The garbage collector frees the memory when no column uses it.
        if (region.tryLease(key)) {
          all.remove();
          region.channel.close();
          regions--;
        }
      } else if (region.tryLease(key)) {
        all.remove();
        return region;
      }
    }
    return null;
  }

  /**
   * Creates a file and writes all of it: a store to a page that the system cannot provide would end the process.
   *
   * @return null if the file system has no room or is no tmpfs
   */
  private static Region createRegion(long size) throws IOException {
    Path folder = Paths.get(FOLDER, new String[0]);
    if (ByteOrder.nativeOrder() != ByteOrder.LITTLE_ENDIAN || !Files.isDirectory(folder, new LinkOption[0])) {
      return null;
    }
    FileStore store = Files.getFileStore(folder);
    // Other programs use the file system, too.
    if (!store.type().equals("tmpfs") || store.getUsableSpace() < 2 * size) {
      return null;
    }
    sweep(folder);
    String name = PREFIX + UUID.randomUUID();
    Set<OpenOption> openOptions =
        new HashSet<>(
            Arrays.asList(
                StandardOpenOption.CREATE_NEW,
                StandardOpenOption.READ,
                StandardOpenOption.WRITE,
                // Unlinks the name at once.
                StandardOpenOption.DELETE_ON_CLOSE));
    FileAttribute<?>[] attributes = {PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"))};
    FileChannel channel = FileChannel.open(folder.resolve(name), openOptions, attributes);
    boolean isOpen = false;
    try {
      ByteBuffer zeros = ByteBuffer.allocateDirect(1 << 18);
      for (long at = 0; at < size; ) {
        zeros.position(0).limit((int) Math.min(zeros.capacity(), size - at));
        at += channel.write(zeros, at);
      }
      String path = descriptor(name);
      Region region = path == null ? null : new Region(channel, size, path);
      isOpen = region != null;
      return region;
    } finally {
      if (!isOpen) {
        channel.close();
      }
    }
  }

  /** Deletes the files of processes that were killed before they unlinked the name. Such files are empty. */
  private static void sweep(Path folder) throws IOException {
    DirectoryStream<Path> names = Files.newDirectoryStream(folder, PREFIX + "*");
    try {
      for (Path entry : names) {
        try {
          long age = System.currentTimeMillis() - Files.getLastModifiedTime(entry, new LinkOption[0]).toMillis();
          if (age > STALE_MS) {
            Files.deleteIfExists(entry);
          }
        } catch (IOException problem) {
          // Another process deleted the file, or another user owns it.
        }
      }
    } finally {
      names.close();
    }
  }

  /** Returns a path that opens an unlinked file in other processes; null if there is none. */
  private static String descriptor(String name) throws IOException {
    DirectoryStream<Path> all = Files.newDirectoryStream(Paths.get("/proc/self/fd", new String[0]));
    try {
      for (Path entry : all) {
        String target = "";
        try {
          target = Files.readSymbolicLink(entry).toString();
        } catch (IOException closed) {
          // Another thread closed the descriptor.
        }
        if (target.startsWith(FOLDER + "/" + name)) {
          return "/proc/" + ProcessHandle.current().pid() + "/fd/" + entry.getFileName();
        }
      }
      return null;
    } finally {
      all.close();
    }
  }

  /** Returns the worker's input: a line with the path of the memory and a line with the key of the lease. */
  public synchronized String workerText() {
    StringBuilder digits = new StringBuilder();
    for (byte digit : key) {
      digits.append(String.format("%02x", digit));
    }
    return region.path + "\n" + digits;
  }

  /** Returns the next batch in the memory. It is valid until {@link #release} is called. */
  synchronized LanceMessage nextMessage() {
    if (region == null) {
      throw new IllegalStateException("the task has ended");
    }
    number++;
    long record = region.address + RECORDS + number % MAX_RECORDS * RECORD;
    long recordNumber = Platform.getLong(null, record);
    long offset = Platform.getLong(null, record + 8);
    long bytes = Platform.getLong(null, record + 16);
    if (recordNumber != number) {
      throw new IllegalStateException("a Python worker has placed batch " + recordNumber + " in place of " + number);
    }
    boolean fits = offset >= HEADER && offset % 8 == 0 && bytes >= 8 && offset <= region.size - bytes;
    if (!fits) {
      throw LanceMessage.damaged("lies at " + offset + " with " + bytes + " bytes of " + region.size);
    }
    return new LanceMessage(region, region.address + offset, bytes);
  }

  /** Tells the worker that it may reuse the memory of all batches so far. */
  synchronized void release() {
    if (region != null && number > Platform.getLong(null, region.address + LAST_READ)) {
      // All reads of the batches must happen before this store.
      java.lang.invoke.VarHandle.fullFence();
      Platform.putLong(null, region.address + LAST_READ, number);
    }
  }

  /** Returns the counters of the worker, one line each. */
  synchronized String counts() {
    if (region == null) {
      return "";
    }
    byte[] text = new byte[(int) (HEADER - COUNTS)];
    Platform.copyMemory(null, region.address + COUNTS, text, Platform.BYTE_ARRAY_OFFSET, text.length);
    int end = 0;
    while (end < text.length && text[end] != 0) {
      end++;
    }
    return new String(text, 0, end, StandardCharsets.US_ASCII);
  }

  /**
   * Ends the lease.
   *
   * @param allRead whether the task read all batches; if not, it may go on reading for a while
   */
  synchronized void close(boolean allRead) {
    if (region != null) {
      giveBack(region, allRead || number == 0L ? 0L : REUSE_DELAY_NS);
      region = null;
    }
  }

  private static synchronized void giveBack(Region region, long delay) {
    region.reusableFrom = System.nanoTime() + delay;
    FREE.add(region);
  }
}
