import java.util.concurrent.CountDownLatch;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;

/** One ActiveMQ Artemis server in a process of its own, from a configuration file; it says on its output when it is up. */
public final class ArtemisBroker {
  public static void main(String[] arguments) throws Exception {
    EmbeddedActiveMQ server = new EmbeddedActiveMQ();
    server.setConfigResourcePath("file://" + arguments[0]);
    server.start();
    System.out.println("up");
    new CountDownLatch(1).await();
  }
}
