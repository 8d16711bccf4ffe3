package org.lance.spark.load;

import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.StringReader;
import java.net.URL;
import java.net.URLConnection;
import java.net.URLStreamHandler;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BiConsumer;
import java.util.function.BiFunction;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.util.MutableURLClassLoader;
import org.codehaus.commons.compiler.CompileException;
import org.codehaus.commons.compiler.util.resource.PathResourceFinder;
import org.codehaus.commons.compiler.util.resource.ResourceFinder;
import org.codehaus.janino.ClassLoaderIClassLoader;
import org.codehaus.janino.Descriptor;
import org.codehaus.janino.JavaSourceIClassLoader;
import org.codehaus.janino.Parser;
import org.codehaus.janino.Scanner;
import org.codehaus.janino.UnitCompiler;
import org.codehaus.janino.util.ClassFile;
import org.slf4j.LoggerFactory;

/**
 * Compiles the classes of this package in the driver, when Spark first loads them.
 *
 * <p>{@code enable} adds an address of the form lance-units:/ to the driver's class loader. When a class of
 * org.lance.spark is first loaded, Janino, which comes with Spark, compiles its source file, called a unit. The result
 * is kept in a folder for the next session. Units may name each other. Unused classes are never compiled. Executors
 * get the classes that they need from LanceTransport.
 */
public final class LanceUnits extends URLStreamHandler {
  private static final String ADDRESS = "lance-units:/";
  // The driver's Python: a function of a request as JSON and its subject, or null, to the answer as JSON.
  private static volatile BiFunction<String, Object, String> python = null;
  // The Python data source, and the id of the Spark application that it belongs to.
  private static volatile Object format = null;
  private static volatile String application = null;

  // Kind -> lower-case names of options, from their declarations in Python (see options/option_fields.py).
  private static volatile Map<String, Object> options = new HashMap<>();

  private final ClassLoader loader;
  // The folder of compiled units.
  private final File folder;
  // The root folder of the sources, and the qualified names of all units.
  private final File sources;
  private final Set<String> units;
  // Name of a class -> the units that it may extend, best first. Each unit has the interface of Spark that it needs.
  private final Map<String, Object> choices;
  // Path of a class file -> its bytes.
  private final Map<String, Object> classes = new HashMap<>();
  private final Set<String> attemptedUnits = new HashSet<>();
  // Parses units, and finds the types that they name; null before the first compilation.
  private JavaSourceIClassLoader types = null;

  private LanceUnits(ClassLoader loader, Map<String, Object> request) {
    this.loader = loader;
    this.folder = new File((String) request.get("compiledUnits"));
    this.sources = new File((String) request.get("sources"));
    this.choices = Json.object(request.get("choices"));
    this.units = new HashSet<>(Json.names(request.get("units")));
    this.units.addAll(choices.keySet());
  }

  /** Publishes the classes to the driver, connects them with Python, and sets the settings of a session. */
  @SuppressWarnings({"rawtypes", "unchecked"}) // Janino makes no bridge methods, and Python's function has no types.
  public static final class Start implements BiConsumer {
    public void accept(Object activeSession, Object startRequest) {
      SparkSession session = (SparkSession) activeSession;
      Map<String, Object> request = Json.object(startRequest);
      try {
        publish(request);
      } catch (IOException problem) {
        throw new IllegalStateException(problem);
      }
      if (request.get("answers") != null) {
        python = (BiFunction<String, Object, String>) request.get("answers");
      }
      options = Json.object(request.get("options"));
      Map<String, String> settings = new HashMap<>(Json.texts(request.get("settings")));
      Map<String, String> defaults = Json.texts(request.get("defaults"));
      for (String name : defaults.keySet()) {
        if (session.conf().get(name, null) == null) {
          settings.put(name, defaults.get(name));
        }
      }
      for (String name : settings.keySet()) {
        session.conf().set(name, (String) settings.get(name));
        if ((Boolean) request.get("newSessions")) {
          session.sharedState().conf().set(name, (String) settings.get(name));
        }
      }
    }
  }

  private static void publish(Map<String, Object> request) throws IOException {
    ClassLoader context = Thread.currentThread().getContextClassLoader();
    while (context != null && !(context instanceof MutableURLClassLoader)) {
      context = context.getParent();
    }
    if (context == null) {
      throw new IllegalStateException("the driver's class loader accepts no classes");
    }
    MutableURLClassLoader loader = (MutableURLClassLoader) context;
    URL[] urls = loader.getURLs();
    for (URL url : urls) {
      if (url.toString().equals(ADDRESS)) {
        return;
      }
    }
    loader.addURL(new URL(null, ADDRESS, new LanceUnits(loader, request)));
  }

  /**
   * Returns the Python data source for an application; Python makes it at the first call.
   *
   * @param id the id of the Spark application
   * @return the data source; null if Spark has to ask a Python worker for it
   */
  public static Object format(String id) {
    if (!id.equals(application)) {
      BiFunction<String, Object, String> function = python;
      AtomicReference<Object> reference = new AtomicReference<>();
      if (function != null) {
        function.apply("{\"verb\": \"make_format\"}", reference);
      }
      format = reference.get();
      application = id;
    }
    return format;
  }

  /**
   * Returns whether an option is of a kind.
   *
   * @param kind a kind of the declarations in Python, such as {@code time}
   */
  public static boolean isOption(String name, String kind) {
    return ((List<?>) options.get(kind)).contains(name.toLowerCase(Locale.ROOT));
  }

  /** Returns whether any of the options is of a kind. */
  public static boolean hasOption(Map<String, String> options, String kind) {
    boolean hasAny = false;
    for (String option : options.keySet()) {
      hasAny = hasAny || isOption(option, kind);
    }
    return hasAny;
  }

  /**
   * Sends a request to the driver's Python.
   *
   * @param question the request as JSON
   * @param subject an object of the JVM that the request is about; null for none
   * @return the answer as JSON
   */
  public static String ask(String question, Object subject) {
    BiFunction<String, Object, String> function = python;
    if (function == null) {
      throw new IllegalStateException("the Python process that enabled Lance's SQL is gone");
    }
    return (String) function.apply(question, subject);
  }

  protected URLConnection openConnection(URL url) throws IOException {
    String path = url.getPath().substring(1);
    byte[] bytes = path.endsWith(".class") ? find(path) : null;
    if (bytes == null) {
      throw new FileNotFoundException(path);
    }
    return new Content(url, bytes);
  }

  private byte[] find(String path) {
    String name = path.substring(0, path.length() - ".class".length()).replace('/', '.');
    int inner = name.indexOf('$');
    String unit = inner < 0 ? name : name.substring(0, inner);
    synchronized (classes) {
      tryUnit(unit);
      return (byte[]) classes.get(path);
    }
  }

  /** Returns whether a unit exists. The first call for a unit compiles it. */
  private boolean tryUnit(String unit) {
    if (units.contains(unit) && attemptedUnits.add(unit)) {
      try {
        provide(unit);
      } catch (Throwable problem) {
        String reason = String.valueOf(problem.getMessage()).split("\n")[0];
        LoggerFactory.getLogger("spark_lance")
            .warn(unit.substring(unit.lastIndexOf('.') + 1) + " does not fit this release of Spark, so what it does is missing: " + reason);
      }
    }
    return classes.containsKey(unit.replace('.', '/') + ".class");
  }

  private void provide(String unit) throws Exception {
    File unitFolder = new File(folder, unit);
    String path = unit.replace('.', '/');
    File[] files = unitFolder.listFiles();
    if (files != null) {
      for (File file : files) {
        classes.put(path.substring(0, path.lastIndexOf('/') + 1) + file.getName(), Files.readAllBytes(file.toPath()));
      }
      return;
    }
    Map<String, byte[]> codes = compile(unit);
    for (Map.Entry<String, byte[]> code : codes.entrySet()) {
      classes.put(((String) code.getKey()).replace('.', '/') + ".class", code.getValue());
    }
    save(codes, unitFolder);
  }

  /**
   * Compiles a unit. It parses other units that the unit names, for their declarations, and does not compile them.
   *
   * @return the byte code by name of class
   */
  private Map<String, byte[]> compile(String unit) throws CompileException, ClassNotFoundException {
    if (types == null) {
      ClassLoader otherClasses = new OtherClasses(loader, units);
      ResourceFinder finder = new PathResourceFinder(new File[] {sources});
      types = new JavaSourceIClassLoader(finder, "UTF-8", new ClassLoaderIClassLoader(otherClasses));
      types.setSourceVersion(8);
      types.setTargetVersion(8);
    }
    if (choices.containsKey(unit)) {
      return compileChoice(unit);
    }
    if (types.loadIClass(Descriptor.fromClassName(unit)) == null) {
      throw new ClassNotFoundException(unit);
    }
    for (Object unitCompiler : types.getUnitCompilers()) {
      UnitCompiler compiler = (UnitCompiler) unitCompiler;
      if (compiler.findClass(unit) != null) {
        return codes(compiler);
      }
    }
    throw new ClassNotFoundException(unit);
  }

  /** Compiles a class without a body. It extends the first of its choices that this release of Spark supports. */
  private Map<String, byte[]> compileChoice(String unit) throws CompileException {
    int end = unit.lastIndexOf('.');
    String text = "package " + unit.substring(0, end) + "; public final class " + unit.substring(end + 1) + " extends "
        + choose(Json.lists(choices.get(unit))) + " {}";
    try {
      Parser parser = new Parser(new Scanner(unit, new StringReader(text)));
      return codes(new UnitCompiler(parser.parseAbstractCompilationUnit(), types));
    } catch (IOException impossible) {
      throw new IllegalStateException(impossible);
    }
  }

  /**
   * Returns the first unit whose interface Spark has, and that compiles; null if there is none.
   *
   * @param candidates pairs of a unit and an interface
   */
  private String choose(List<List<Object>> candidates) {
    String result = null;
    for (List<Object> candidate : candidates) {
      String unit = (String) candidate.get(0);
      String requirement = (String) candidate.get(1);
      if (result == null && loader.getResource(requirement.replace('.', '/') + ".class") != null) {
        result = tryUnit(unit) ? unit : null;
      }
    }
    return result;
  }

  private static Map<String, byte[]> codes(UnitCompiler compiler) throws CompileException {
    Map<String, byte[]> codes = new HashMap<>();
    List<ClassFile> files = new ArrayList<>();
    compiler.compileUnit(true, true, false, files);
    for (Object file : files) {
      codes.put(((ClassFile) file).getThisClassName(), ((ClassFile) file).toByteArray());
    }
    return codes;
  }

  /**
   * Loads all classes except units. Loading a unit during a compilation would compile it, and wait for the lock of
   * its name.
   */
  private static final class OtherClasses extends ClassLoader {
    private final Set<String> units;

    OtherClasses(ClassLoader loader, Set<String> units) {
      super(loader);
      this.units = units;
    }

    protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
      int inner = name.indexOf('$');
      if (units.contains(inner < 0 ? name : name.substring(0, inner))) {
        throw new ClassNotFoundException(name);
      }
      return super.loadClass(name, resolve);
    }
  }

  /** Saves the classes of a unit. They appear at once, as another session may read the folder at the same time. */
  private void save(Map<String, byte[]> codes, File unitFolder) {
    try {
      Files.createDirectories(folder.toPath());
      Path temporaryFolder = Files.createTempDirectory(folder.toPath(), ".unit");
      for (Map.Entry<String, byte[]> code : codes.entrySet()) {
        String name = (String) code.getKey();
        Files.write(temporaryFolder.resolve(name.substring(name.lastIndexOf('.') + 1) + ".class"), (byte[]) code.getValue());
      }
      Files.move(temporaryFolder, unitFolder.toPath(), new StandardCopyOption[] {StandardCopyOption.ATOMIC_MOVE});
    } catch (IOException problem) {
      LoggerFactory.getLogger("spark_lance").debug("compiled classes are not kept: " + problem);
    }
  }

  /** A connection that returns the bytes of a compiled class. */
  private static final class Content extends URLConnection {
    private final byte[] bytes;

    Content(URL url, byte[] bytes) {
      super(url);
      this.bytes = bytes;
    }

    public void connect() {}

    public int getContentLength() {
      return bytes.length;
    }

    public long getContentLengthLong() {
      return bytes.length;
    }

    public InputStream getInputStream() {
      return new ByteArrayInputStream(bytes);
    }
  }
}
