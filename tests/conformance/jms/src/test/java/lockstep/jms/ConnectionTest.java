package lockstep.jms;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import jakarta.jms.Connection;
import jakarta.jms.ConnectionMetaData;
import jakarta.jms.InvalidClientIDException;
import jakarta.jms.JMSException;
import jakarta.jms.JMSSecurityException;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Opening and closing: client ids, credentials, metadata, idle time-outs. */
class ConnectionTest {
    @RegisterExtension final Clients clients = new Clients();

    @Test
    void clientIdIsKept() throws JMSException {
        String id = clients.name("client");
        Connection connection = clients.keep(Clients.factory().createConnection());
        connection.setClientID(id);
        connection.start();
        assertEquals(id, connection.getClientID());
    }

    @Test
    void secondConnectionOfAClientIdIsRefused() throws JMSException {
        String id = clients.name("client");
        clients.connect("jms.clientID=" + id);
        Connection second = clients.keep(Clients.factory().createConnection());
        assertThrows(InvalidClientIDException.class, () -> second.setClientID(id));
    }

    @Test
    void clientIdIsFreeAgainOnceItsConnectionIsClosed() throws JMSException {
        String id = clients.name("client");
        clients.connect("jms.clientID=" + id).close();
        assertDoesNotThrow(() -> clients.connect("jms.clientID=" + id));
    }

    @ParameterizedTest
    @ValueSource(strings = {"PLAIN", "SCRAM-SHA-256"})
    void passwordIsAskedFor(String mechanism) throws JMSException {
        String user = System.getProperty("lockstep.user", "");
        assumeTrue(!user.isEmpty(), "the proxy has no users");
        JmsConnectionFactory factory = Clients.factory("amqp.saslMechanisms=" + mechanism);
        clients.connectAs(factory, user, System.getProperty("lockstep.password"));
        assertThrows(JMSSecurityException.class, () -> clients.connectAs(factory, user, "wrong"));
        assertThrows(JMSSecurityException.class, () -> clients.connectAs(factory, "nobody", "wrong"));
    }

    @Test
    void metadataNamesTheVersionOfJms() throws JMSException {
        ConnectionMetaData metadata = clients.connect().getMetaData();
        assertTrue(metadata.getJMSMajorVersion() >= 2);
        assertNotNull(metadata.getJMSProviderName());
    }

    @Test
    void messagesWaitUntilTheConnectionIsStarted() throws JMSException {
        Connection connection = clients.keep(Clients.factory().createConnection());
        Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(clients.name("queue"));
        Clients.send(session, queue, "one");
        try (var consumer = session.createConsumer(queue)) {
            assertEquals(null, consumer.receive(200));
            connection.start();
            assertEquals(List.of("one"), Clients.texts(consumer, 1));
            connection.stop();
            Clients.send(session, queue, "two");
            assertEquals(null, consumer.receive(200));
            connection.start();
            assertEquals(List.of("two"), Clients.texts(consumer, 1));
        }
    }

    @Test
    void manyConnectionsAtOnce() throws JMSException {
        String name = clients.name("queue");
        List<Connection> connections = new ArrayList<>();
        for (int number = 0; number < 20; number++) {
            connections.add(clients.connect());
        }
        for (Connection connection : connections) {
            Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
            Clients.send(session, session.createQueue(name), Integer.toString(connections.indexOf(connection)));
        }
        Connection last = connections.get(connections.size() - 1);
        Session session = last.createSession(Session.AUTO_ACKNOWLEDGE);
        Clients.assertHolds(Clients.numbers(0, 20), last, session.createQueue(name));
    }

    @Test
    void connectionOutlivesItsIdleTimeout() throws Exception {
        Connection connection = clients.connect("amqp.idleTimeout=4000");
        AtomicReference<Throwable> failure = new AtomicReference<>();
        connection.setExceptionListener(failure::set);
        Thread.sleep(9_000);
        assertEquals(null, failure.get());
        connection.createSession(Session.AUTO_ACKNOWLEDGE).close();
    }

    @Test
    void maximumFrameSizeOfTheClientIsKept() throws JMSException {
        Connection connection = clients.connect("amqp.maxFrameSize=1024");
        Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(clients.name("queue"));
        String text = "0123456789".repeat(5_000);
        Clients.send(session, queue, text);
        Clients.assertHolds(List.of(text), connection, queue);
    }
}
