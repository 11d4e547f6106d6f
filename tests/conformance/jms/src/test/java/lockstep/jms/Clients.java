package lockstep.jms;

import static org.junit.jupiter.api.Assertions.assertEquals;

import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.Destination;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * One test's connections to the proxy, and names that no other test uses. A field of the test class, by
 * {@code @RegisterExtension}; whatever the test opened is closed behind it.
 */
final class Clients implements BeforeEachCallback, AfterEachCallback {
    /** Of the proxies, as host:port; all of them serve the same cluster. */
    static final List<String> PROXIES = List.of(System.getProperty("lockstep.proxies").split(","));

    /** How long a message may take that is there or on its way. */
    static final long ARRIVES_MILLIS = 30_000;

    private static final String TIME_OUTS =
            "jms.connectTimeout=30000&jms.requestTimeout=30000&jms.sendTimeout=30000&jms.closeTimeout=5000";

    private static final String FRAMES = Boolean.getBoolean("lockstep.frames") ? "?amqp.traceFrames=true" : "";

    private final List<Connection> opened = new ArrayList<>();
    private String test = "";

    @Override
    public void beforeEach(ExtensionContext context) {
        test = context.getRequiredTestMethod().getName();
    }

    @Override
    public void afterEach(ExtensionContext context) {
        for (Connection connection : opened) {
            try {
                connection.close();
            } catch (JMSException error) {
                // Some tests break their connections, and those cannot say good-bye.
            }
        }
        opened.clear();
    }

    /** The name of a queue or topic, or a client id, that is this test's own in this and any other run. */
    String name(String word) {
        return test + "." + word + "." + UUID.randomUUID().toString().substring(0, 8);
    }

    /** A factory whose connections go to the first proxy; options are as "jms.clientID=x". */
    static JmsConnectionFactory factory(String... options) {
        String separator = FRAMES.isEmpty() ? "?" : "&";
        return new JmsConnectionFactory(uri(PROXIES.get(0)) + separator + TIME_OUTS + joined(options));
    }

    /** A factory whose connections move on to the next proxy when theirs is gone. */
    static JmsConnectionFactory failoverFactory(List<String> proxies, String... options) {
        List<String> uris = proxies.stream().map(Clients::uri).toList();
        return new JmsConnectionFactory(
                "failover:(" + String.join(",", uris) + ")?" + TIME_OUTS + joined(options));
    }

    private static String uri(String address) {
        return "amqp://" + address + FRAMES;
    }

    private static String joined(String... options) {
        return options.length == 0 ? "" : "&" + String.join("&", options);
    }

    /** A started connection. */
    Connection connect(String... options) throws JMSException {
        return connect(factory(options));
    }

    /** A started connection of this factory. */
    Connection connect(JmsConnectionFactory factory) throws JMSException {
        Connection connection = keep(factory.createConnection());
        connection.start();
        return connection;
    }

    /** A started connection of this user. */
    Connection connectAs(JmsConnectionFactory factory, String user, String password) throws JMSException {
        Connection connection = keep(factory.createConnection(user, password));
        connection.start();
        return connection;
    }

    /** Has the connection closed behind the test. */
    Connection keep(Connection connection) {
        opened.add(connection);
        return connection;
    }

    /** Sends texts by a producer of its own, which is closed again. */
    static void send(Session session, Destination destination, String... texts) throws JMSException {
        try (MessageProducer producer = session.createProducer(destination)) {
            for (String text : texts) {
                producer.send(session.createTextMessage(text));
            }
        }
    }

    /** Sends the texts "0", "1", ... by a producer of its own. */
    static void sendNumbers(Session session, Destination destination, int count) throws JMSException {
        send(session, destination, numbers(0, count).toArray(String[]::new));
    }

    /** The texts of the numbers from {@code first} up to and without {@code end}. */
    static List<String> numbers(int first, int end) {
        List<String> texts = new ArrayList<>();
        for (int number = first; number < end; number++) {
            texts.add(Integer.toString(number));
        }
        return texts;
    }

    /** Receives this many texts; fewer if the next does not arrive. */
    static List<String> texts(MessageConsumer consumer, int count) throws JMSException {
        List<String> texts = new ArrayList<>();
        while (texts.size() < count) {
            Message message = consumer.receive(ARRIVES_MILLIS);
            if (message == null) {
                break;
            }
            texts.add(text(message));
        }
        return texts;
    }

    /** Receives what is there, until nothing is: each look asks the broker, so none of these waits. */
    static List<String> rest(MessageConsumer consumer) throws JMSException {
        List<String> texts = new ArrayList<>();
        for (Message message; (message = consumer.receiveNoWait()) != null; ) {
            texts.add(text(message));
        }
        return texts;
    }

    /** That a consumer gets these texts and nothing else. */
    static void assertOnly(List<String> expected, MessageConsumer consumer) throws JMSException {
        assertEquals(expected, texts(consumer, expected.size()));
        assertEquals(List.of(), rest(consumer));
    }

    /** That these texts are in a queue, and nothing else; takes them out by a consumer of its own session. */
    static void assertHolds(List<String> expected, Connection connection, Destination destination)
            throws JMSException {
        try (Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
                MessageConsumer consumer = session.createConsumer(destination)) {
            assertOnly(expected, consumer);
        }
    }

    /** Receives one message, which has to arrive. */
    static Message receive(MessageConsumer consumer) throws JMSException {
        Message message = consumer.receive(ARRIVES_MILLIS);
        if (message == null) {
            throw new AssertionError("no message within " + ARRIVES_MILLIS + " ms");
        }
        return message;
    }

    /** The text of a text message, and a word for any other. */
    static String text(Message message) throws JMSException {
        if (message instanceof TextMessage text) {
            return text.getText();
        }
        return message instanceof BytesMessage bytes ? "bytes " + bytes.getBodyLength() : message.toString();
    }
}
