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
  // The driver's Python: (text of a question, an object it is about or null) -> text of the answer.
  private static volatile BiFunction<String, Object, String> python = null;
  // The format as Spark knows it once it has asked a Python worker for all formats, and for which application (Spark's,
  // by its id).
  private static volatile Object format = null;
  private static volatile String application = null;

  // Kind -> lower-case names of options, from their declarations in Python (see option_fields.py).
  private static volatile Map<String, Object> options = new HashMap<>();

  private final ClassLoader loader;
  // Where compiled units are kept.
  private final File folder;
  // The root of their sources, and the names of their top-level classes, with packages.
  private final File sources;
  private final Set<String> units;
  // Name of a class -> units that it may extend, best first, each with an interface of Spark that it needs.
  private final Map<String, Object> choices;
  // Path of a class file -> its bytes.
  private final Map<String, Object> classes = new HashMap<>();
  private final Set<String> tried = new HashSet<>();
  // The types that sources name; it parses units. Null until a unit is compiled.
  private JavaSourceIClassLoader types = null;

  private LanceUnits(ClassLoader loader, Map<String, Object> request) {
    this.loader = loader;
    this.folder = new File((String) request.get("compiledUnits"));
    this.sources = new File((String) request.get("sources"));
    this.choices = Json.object(request.get("choices"));
    this.units = new HashSet<>(Json.names(request.get("units")));
    this.units.addAll(choices.keySet());
  }

  /** Lets the classes be found and their questions be answered, and tells a session of the settings that lead there. */
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
      throw new IllegalStateException("the driver's class loader takes no classes");
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

  // The format for an application, which Python makes when it is first needed; null if Spark has to look for it.
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

  // Whether a name is that of an option of a kind.
  public static boolean isOption(String name, String kind) {
    return ((List<?>) options.get(kind)).contains(name.toLowerCase(Locale.ROOT));
  }

  // Whether one of some options is of a kind.
  public static boolean hasOption(Map<String, String> options, String kind) {
    boolean has = false;
    for (String option : options.keySet()) {
      has = has || isOption(option, kind);
    }
    return has;
  }

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

  // Whether a unit is there, compiled at its first use.
  private boolean tryUnit(String unit) {
    if (units.contains(unit) && tried.add(unit)) {
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

  // The byte code of a unit, by class. Other units that it names are parsed for their declarations, and not compiled.
  private Map<String, byte[]> compile(String unit) throws CompileException, ClassNotFoundException {
    if (types == null) {
      ClassLoader others = new OtherClasses(loader, units);
      ResourceFinder finder = new PathResourceFinder(new File[] {sources});
      types = new JavaSourceIClassLoader(finder, "UTF-8", new ClassLoaderIClassLoader(others));
      types.setSourceVersion(8);
      types.setTargetVersion(8);
    }
    if (choices.containsKey(unit)) {
      return compileChoice(unit);
    }
    if (types.loadIClass(Descriptor.fromClassName(unit)) == null) {
      throw new ClassNotFoundException(unit);
    }
    for (Object one : types.getUnitCompilers()) {
      UnitCompiler compiler = (UnitCompiler) one;
      if (compiler.findClass(unit) != null) {
        return codes(compiler);
      }
    }
    throw new ClassNotFoundException(unit);
  }

  // A class without a body of its own, which extends the first of its choices that this release of Spark can have.
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

  // The first of some units whose interface Spark has, and that compiles. Pairs of a unit and an interface.
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

  /** All classes but units. Loading a unit in a compilation would compile it, and wait for the lock of its name. */
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

  // All classes of a unit appear at once: another session may look at the same time.
  private void save(Map<String, byte[]> codes, File unitFolder) {
    try {
      Files.createDirectories(folder.toPath());
      Path fresh = Files.createTempDirectory(folder.toPath(), ".unit");
      for (Map.Entry<String, byte[]> code : codes.entrySet()) {
        String name = (String) code.getKey();
        Files.write(fresh.resolve(name.substring(name.lastIndexOf('.') + 1) + ".class"), (byte[]) code.getValue());
      }
      Files.move(fresh, unitFolder.toPath(), new StandardCopyOption[] {StandardCopyOption.ATOMIC_MOVE});
    } catch (IOException problem) {
      LoggerFactory.getLogger("spark_lance").debug("compiled classes are not kept: " + problem);
    }
  }

  /** The bytes of a compiled class, as a connection. */
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
