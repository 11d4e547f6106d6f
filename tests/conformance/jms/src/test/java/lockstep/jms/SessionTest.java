package lockstep.jms;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Acknowledgement modes, recovery, and several sessions in one connection. */
class SessionTest {
    /** Qpid JMS's own mode: acknowledge() is about its message alone. */
    private static final int INDIVIDUAL_ACKNOWLEDGE = 101;

    @RegisterExtension final Clients clients = new Clients();

    @ParameterizedTest
    @ValueSource(ints = {Session.AUTO_ACKNOWLEDGE, Session.DUPS_OK_ACKNOWLEDGE})
    void receivedMessagesAreGone(int mode) throws JMSException {
        Connection connection = clients.connect();
        Session session = connection.createSession(mode);
        Queue queue = session.createQueue(clients.name("queue"));
        Clients.sendNumbers(session, queue, 20);
        try (MessageConsumer consumer = session.createConsumer(queue)) {
            assertEquals(Clients.numbers(0, 20), Clients.texts(consumer, 20));
        }
        session.close();
        Clients.assertHolds(List.of(), connection, queue);
    }

    @Test
    void clientAcknowledgeTakesAllThatWasDelivered() throws JMSException {
        Connection connection = clients.connect();
        Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
        Queue queue = session.createQueue(clients.name("queue"));
        Clients.sendNumbers(session, queue, 5);
        MessageConsumer consumer = session.createConsumer(queue);
        Clients.receive(consumer);
        Clients.receive(consumer);
        Clients.receive(consumer).acknowledge();
        Clients.receive(consumer);
        session.close();
        Clients.assertHolds(Clients.numbers(3, 5), connection, queue);
    }

    @Test
    void individualAcknowledgeTakesOneMessage() throws JMSException {
        Connection connection = clients.connect();
        Session session = connection.createSession(INDIVIDUAL_ACKNOWLEDGE);
        Queue queue = session.createQueue(clients.name("queue"));
        Clients.sendNumbers(session, queue, 4);
        MessageConsumer consumer = session.createConsumer(queue);
        List<Message> messages = new ArrayList<>();
        for (int number = 0; number < 4; number++) {
            messages.add(Clients.receive(consumer));
        }
        messages.get(2).acknowledge();
        messages.get(0).acknowledge();
        session.close();
        Clients.assertHolds(List.of("1", "3"), connection, queue);
    }

    @Test
    void recoverGivesAgainWhatWasNotAcknowledged() throws JMSException {
        Connection connection = clients.connect();
        Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
        Queue queue = session.createQueue(clients.name("queue"));
        Clients.sendNumbers(session, queue, 6);
        MessageConsumer consumer = session.createConsumer(queue);
        Clients.receive(consumer).acknowledge();
        assertFalse(Clients.receive(consumer).getJMSRedelivered());
        assertEquals("2", Clients.text(Clients.receive(consumer)));
        session.recover();
        Message again = Clients.receive(consumer);
        assertEquals("1", Clients.text(again));
        assertTrue(again.getJMSRedelivered());
        assertEquals(2, again.getIntProperty("JMSXDeliveryCount"));
        assertEquals("2", Clients.text(Clients.receive(consumer)));
        Message fresh = Clients.receive(consumer);
        assertEquals("3", Clients.text(fresh));
        assertFalse(fresh.getJMSRedelivered());
        assertEquals(1, fresh.getIntProperty("JMSXDeliveryCount"));
        fresh.acknowledge();
        session.close();
        Clients.assertHolds(Clients.numbers(4, 6), connection, queue);
    }

    @Test
    void closedSessionGivesItsMessagesBackInOrder() throws JMSException {
        Connection connection = clients.connect();
        Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
        Queue queue = session.createQueue(clients.name("queue"));
        Clients.sendNumbers(session, queue, 50);
        assertEquals(Clients.numbers(0, 7), Clients.texts(session.createConsumer(queue), 7));
        session.close();
        Session next = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        MessageConsumer consumer = next.createConsumer(queue);
        Message first = Clients.receive(consumer);
        assertEquals("0", Clients.text(first));
        assertTrue(first.getJMSRedelivered());
        assertEquals(Clients.numbers(1, 50), Clients.texts(consumer, 49));
    }

    @Test
    void sessionsOfOneConnectionWorkInParallel() throws Exception {
        Connection connection = clients.connect();
        List<Callable<List<String>>> jobs = new ArrayList<>();
        for (int number = 0; number < 8; number++) {
            String name = clients.name("queue" + number);
            jobs.add(
                    () -> {
                        try (Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE)) {
                            Queue queue = session.createQueue(name);
                            Clients.sendNumbers(session, queue, 50);
                            return Clients.texts(session.createConsumer(queue), 50);
                        }
                    });
        }
        ExecutorService threads = Executors.newFixedThreadPool(jobs.size());
        try {
            for (Future<List<String>> texts : threads.invokeAll(jobs)) {
                assertEquals(Clients.numbers(0, 50), texts.get());
            }
        } finally {
            threads.shutdownNow();
        }
    }

    @Test
    void twoConsumersShareAQueue() throws JMSException {
        Connection connection = clients.connect("jms.prefetchPolicy.all=5");
        Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(clients.name("queue"));
        MessageConsumer one = session.createConsumer(queue);
        MessageConsumer two = session.createConsumer(queue);
        Clients.sendNumbers(session, queue, 10);
        List<String> ofOne = Clients.texts(one, 5);
        List<String> ofTwo = Clients.texts(two, 5);
        List<String> all = new ArrayList<>(ofOne);
        all.addAll(ofTwo);
        all.sort(null);
        assertEquals(Clients.numbers(0, 10), all);
    }
}
