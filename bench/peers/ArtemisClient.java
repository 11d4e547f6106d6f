import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.Semaphore;
import javax.jms.BytesMessage;
import javax.jms.CompletionListener;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.JMSException;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Queue;
import javax.jms.Session;
import org.apache.activemq.artemis.api.core.SimpleString;
import org.apache.activemq.artemis.api.core.client.ClientSession;
import org.apache.activemq.artemis.jms.client.ActiveMQConnectionFactory;
import org.apache.activemq.artemis.jms.client.ActiveMQSession;

/**
 * Load on ActiveMQ Artemis for bench/peers, on its own JMS client: one thread and one connection for each client.
 *
 * <p>Law: it works as bench/load.py does: it prepares, says "ready", waits for a line, runs through its warm-up and then counts
 * what begins in so many seconds; then it prints one line of JSON, and when its input has ended it removes its queues.
 *
 * <p>ArtemisClient PORT WORKLOAD CONNECTIONS SIZE BODY_BYTES WARM_SECONDS SECONDS PREFIX, where WORKLOAD is publish (transactions
 * of SIZE messages), move (SIZE taken and SIZE published in one), stream (SIZE messages unconfirmed at a time) or consume (SIZE
 * messages of each connection, sent before). The server makes queues as they are named.
 */
public final class ArtemisClient {
  private static final int MOVED = 1000, ACKNOWLEDGED_AT_ONCE = 100, FILLED_AT_ONCE = 500;
  private static final long RECEIVE_MS = 30_000;

  private static String workload, prefix, url;
  private static int connections, size;
  private static byte[] body;
  private static double warmSeconds, seconds;
  private static long first, last; // what begins between them counts
  private static CyclicBarrier ready, go;

  private final int number;
  private final List<Integer> latenciesUs = new ArrayList<>();
  private long operations, messages, begin, end;
  private Session session;
  private Queue[] queues;

  private ArtemisClient(int number) {
    this.number = number;
  }

  private void run() {
    try (ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory(url);
        Connection connection = factory.createConnection("bench", "bench")) {
      connection.start();
      boolean isTransacted = workload.equals("publish") || workload.equals("move");
      fill(connection);
      session = connection.createSession(isTransacted, isTransacted ? Session.SESSION_TRANSACTED : Session.CLIENT_ACKNOWLEDGE);
      queues = new Queue[] {session.createQueue(prefix + "-" + number + "-a"), session.createQueue(prefix + "-" + number + "-b")};
      ready.await();
      go.await();
      begin = first;
      end = last;
      switch (workload) {
        case "publish" -> publish();
        case "move" -> move();
        case "stream" -> stream();
        default -> consume();
      }
    } catch (Exception error) {
      System.err.println("ArtemisClient: " + error);
      Runtime.getRuntime().halt(1);
    }
  }

  private void fill(Connection connection) throws JMSException {
    int filled = workload.equals("move") ? MOVED : workload.equals("consume") ? size : 0;
    if (filled == 0) return;
    try (Session filling = connection.createSession(true, Session.SESSION_TRANSACTED)) {
      for (String which : workload.equals("move") ? new String[] {"-a", "-b"} : new String[] {"-a"}) {
        MessageProducer producer = producer(filling, filling.createQueue(prefix + "-" + number + which));
        for (int sent = 1; sent <= filled; sent++) {
          producer.send(message(filling));
          if (sent % FILLED_AT_ONCE == 0 || sent == filled) filling.commit();
        }
      }
    }
  }

  private static MessageProducer producer(Session session, Queue queue) throws JMSException {
    MessageProducer producer = session.createProducer(queue);
    producer.setDeliveryMode(DeliveryMode.PERSISTENT);
    producer.setDisableMessageID(true);
    producer.setDisableMessageTimestamp(true);
    return producer;
  }

  private static Message message(Session session) throws JMSException {
    BytesMessage message = session.createBytesMessage();
    message.writeBytes(body);
    return message;
  }

  private synchronized void count(long start, int number) {
    if (start < first || start >= last) return;
    operations++;
    messages += number;
    latenciesUs.add((int) ((System.nanoTime() - start) / 1000));
  }

  private void publish() throws JMSException {
    MessageProducer producer = producer(session, queues[0]);
    for (long start; (start = System.nanoTime()) < last; count(start, size)) {
      for (int sent = 0; sent < size; sent++) producer.send(message(session));
      session.commit();
    }
  }

  private void move() throws JMSException {
    MessageProducer[] producers = {producer(session, queues[0]), producer(session, queues[1])};
    MessageConsumer[] consumers = {session.createConsumer(queues[0]), session.createConsumer(queues[1])};
    for (int source = 0; ; source = 1 - source) {
      receive(consumers[source]);
      long start = System.nanoTime();
      if (start >= last) return;
      for (int taken = 1; taken < size; taken++) receive(consumers[source]);
      for (int sent = 0; sent < size; sent++) producers[1 - source].send(message(session));
      session.commit();
      count(start, 2 * size);
    }
  }

  private static Message receive(MessageConsumer consumer) throws JMSException {
    Message message = consumer.receive(RECEIVE_MS);
    if (message == null) throw new JMSException("no message");
    return message;
  }

  private void stream() throws Exception {
    MessageProducer producer = producer(session, queues[0]);
    Semaphore window = new Semaphore(size);
    window.acquire();
    for (long start; (start = System.nanoTime()) < last; window.acquire())
      producer.send(message(session), new Confirmation(start, window));
    window.acquire(size - 1);
  }

  private final class Confirmation implements CompletionListener {
    private final long start;
    private final Semaphore window;

    private Confirmation(long start, Semaphore window) {
      this.start = start;
      this.window = window;
    }

    @Override
    public void onCompletion(Message message) {
      count(start, 1);
      window.release();
    }

    @Override
    public void onException(Message message, Exception error) {
      System.err.println("ArtemisClient: " + error);
      Runtime.getRuntime().halt(1);
    }
  }

  private void consume() throws JMSException {
    MessageConsumer consumer = session.createConsumer(queues[0]);
    begin = System.nanoTime();
    for (int taken = 1; taken <= size; taken++) {
      Message message = receive(consumer);
      if (taken % ACKNOWLEDGED_AT_ONCE == 0 || taken == size) message.acknowledge();
    }
    end = System.nanoTime();
    operations = messages = size;
  }

  public static void main(String[] arguments) throws Exception {
    // Confirms need a window of their own; consumers and producers have one large enough for the network not to matter.
    url = "tcp://127.0.0.1:" + arguments[0]
        + "?confirmationWindowSize=10485760&producerWindowSize=1048576&blockOnDurableSend=false&callTimeout=60000";
    workload = arguments[1];
    connections = Integer.parseInt(arguments[2]);
    size = Integer.parseInt(arguments[3]);
    body = new byte[Integer.parseInt(arguments[4])];
    warmSeconds = Double.parseDouble(arguments[5]);
    seconds = Double.parseDouble(arguments[6]);
    prefix = arguments[7];
    ready = new CyclicBarrier(connections + 1);
    go = new CyclicBarrier(connections + 1);
    List<ArtemisClient> clients = new ArrayList<>();
    List<Thread> threads = new ArrayList<>();
    for (int number = 0; number < connections; number++) {
      ArtemisClient client = new ArtemisClient(number);
      clients.add(client);
      threads.add(new Thread(client::run));
    }
    threads.forEach(Thread::start);
    ready.await();
    System.out.println("ready");
    if (System.in.read() < 0) return;
    first = System.nanoTime() + (long) (1e9 * warmSeconds);
    last = first + (long) (1e9 * seconds);
    go.await();
    for (Thread thread : threads) thread.join();
    report(clients);
    while (System.in.read() >= 0) {}
    remove(clients);
    Runtime.getRuntime().halt(0);
  }

  private static void remove(List<ArtemisClient> clients) throws Exception {
    try (ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory(url);
        Connection connection = factory.createConnection("bench", "bench");
        Session session = connection.createSession()) {
      ClientSession core = ((ActiveMQSession) session).getCoreSession();
      for (ArtemisClient client : clients)
        for (Queue queue : client.queues) {
          SimpleString name = SimpleString.of(queue.getQueueName());
          if (core.queueQuery(name).isExists()) core.deleteQueue(name);
        }
    }
  }

  private static void report(List<ArtemisClient> clients) {
    long operations = 0, messages = 0, begin = Long.MAX_VALUE, end = Long.MIN_VALUE;
    StringBuilder latencies = new StringBuilder();
    for (ArtemisClient client : clients) {
      operations += client.operations;
      messages += client.messages;
      begin = Math.min(begin, client.begin);
      end = Math.max(end, client.end);
      for (int latency : client.latenciesUs) latencies.append(latencies.length() == 0 ? "" : ",").append(latency);
    }
    System.out.println("{\"operations\": " + operations + ", \"messages\": " + messages + ", \"seconds\": " + (end - begin) / 1e9
        + ", \"latencies_us\": [" + latencies + "]}");
  }
}
