package lockstep.jms;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Receiving: with and without waiting, by listener, with any credit; and what becomes of messages not consumed. */
class ConsumerTest {
    @RegisterExtension final Clients clients = new Clients();

    private Connection connection;
    private Session session;
    private Queue queue;

    @BeforeEach
    void open() throws JMSException {
        connection = clients.connect();
        session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        queue = session.createQueue(clients.name("queue"));
    }

    @Test
    void receiveWaitsForAMessage() throws JMSException {
        MessageConsumer consumer = session.createConsumer(queue);
        assertNull(consumer.receive(200));
        Clients.send(session, queue, "one");
        assertEquals("one", Clients.text(Clients.receive(consumer)));
        assertNull(consumer.receive(200));
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 1, 10, 1000})
    void receiveNoWaitFindsWhatIsThere(int prefetch) throws JMSException {
        Connection other = clients.connect("jms.prefetchPolicy.all=" + prefetch);
        MessageConsumer consumer = other.createSession(Session.AUTO_ACKNOWLEDGE).createConsumer(queue);
        assertNull(consumer.receiveNoWait());
        Clients.sendNumbers(session, queue, 25);
        assertEquals(Clients.numbers(0, 25), Clients.rest(consumer));
        assertNull(consumer.receiveNoWait());
        Clients.send(session, queue, "more");
        assertEquals(List.of("more"), Clients.rest(consumer));
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 1, 10})
    void receiveKeepsOrderWithAnyPrefetch(int prefetch) throws JMSException {
        Connection other = clients.connect("jms.prefetchPolicy.all=" + prefetch);
        MessageConsumer consumer = other.createSession(Session.AUTO_ACKNOWLEDGE).createConsumer(queue);
        Clients.sendNumbers(session, queue, 50);
        assertEquals(Clients.numbers(0, 50), Clients.texts(consumer, 50));
    }

    @Test
    void consumerWithoutPrefetchLeavesMessagesToOthers() throws JMSException {
        Connection other = clients.connect("jms.prefetchPolicy.all=0");
        MessageConsumer idle = other.createSession(Session.AUTO_ACKNOWLEDGE).createConsumer(queue);
        assertNull(idle.receive(50));
        Clients.sendNumbers(session, queue, 5);
        Clients.assertHolds(Clients.numbers(0, 5), connection, queue);
    }

    @Test
    void listenerGetsMessagesInOrder() throws Exception {
        LinkedBlockingQueue<String> heard = new LinkedBlockingQueue<>();
        Session listening = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        listening
                .createConsumer(queue)
                .setMessageListener(
                        message -> {
                            try {
                                heard.add(Clients.text(message));
                            } catch (JMSException error) {
                                heard.add(error.toString());
                            }
                        });
        Clients.sendNumbers(session, queue, 100);
        for (String text : Clients.numbers(0, 100)) {
            assertEquals(text, heard.poll(Clients.ARRIVES_MILLIS, TimeUnit.MILLISECONDS));
        }
    }

    @Test
    void messageThatItsListenerThrowsAtIsDeliveredAgain() throws Exception {
        LinkedBlockingQueue<String> heard = new LinkedBlockingQueue<>();
        AtomicInteger attempts = new AtomicInteger();
        Session listening = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        listening
                .createConsumer(queue)
                .setMessageListener(
                        message -> {
                            try {
                                heard.add(Clients.text(message));
                            } catch (JMSException error) {
                                heard.add(error.toString());
                            }
                            if (attempts.incrementAndGet() < 3) {
                                throw new IllegalStateException("twice");
                            }
                        });
        Clients.send(session, queue, "one");
        // The client releases it, which counts as no delivery.
        for (int attempt = 0; attempt < 3; attempt++) {
            assertEquals("one", heard.poll(Clients.ARRIVES_MILLIS, TimeUnit.MILLISECONDS));
        }
        listening.close();
        Clients.assertHolds(List.of(), connection, queue);
    }

    @Test
    void closedConsumerGivesItsPrefetchedMessagesBackInOrder() throws JMSException {
        Clients.sendNumbers(session, queue, 100);
        MessageConsumer consumer = session.createConsumer(queue);
        assertEquals(Clients.numbers(0, 10), Clients.texts(consumer, 10));
        MessageConsumer next = clients.connect().createSession(Session.AUTO_ACKNOWLEDGE).createConsumer(queue);
        consumer.close();
        Clients.assertOnly(Clients.numbers(10, 100), next);
    }

    @Test
    void messagesOfALostConnectionComeBackInOrder() throws JMSException {
        Clients.sendNumbers(session, queue, 100);
        Connection other = clients.connect();
        MessageConsumer consumer = other.createSession(Session.CLIENT_ACKNOWLEDGE).createConsumer(queue);
        assertEquals(Clients.numbers(0, 10), Clients.texts(consumer, 10));
        other.close();
        MessageConsumer next = session.createConsumer(queue);
        Message first = Clients.receive(next);
        assertEquals("0", Clients.text(first));
        assertTrue(first.getJMSRedelivered());
        assertEquals(2, first.getIntProperty("JMSXDeliveryCount"));
        assertEquals(Clients.numbers(1, 100), Clients.texts(next, 99));
    }

    @Test
    void newMessageIsNotRedelivered() throws JMSException {
        Clients.send(session, queue, "one");
        Message message = Clients.receive(session.createConsumer(queue));
        assertFalse(message.getJMSRedelivered());
        assertEquals(1, message.getIntProperty("JMSXDeliveryCount"));
    }

    @Test
    void presettledConsumerTakesMessagesByReceivingThem() throws JMSException {
        Connection other = clients.connect("jms.presettlePolicy.presettleConsumers=true");
        Session receiving = other.createSession(Session.CLIENT_ACKNOWLEDGE);
        Clients.sendNumbers(session, queue, 10);
        assertEquals(Clients.numbers(0, 10), Clients.texts(receiving.createConsumer(queue), 10));
        receiving.close();
        Clients.assertHolds(List.of(), connection, queue);
    }

    @Test
    void redeliveryPolicyOfTheClientRejectsWhatFailedTooOften() throws JMSException {
        // The client rejects by itself what was delivered more often: "rejected" is its outcome 3.
        Connection strict =
                clients.connect("jms.redeliveryPolicy.maxRedeliveries=1", "jms.redeliveryPolicy.outcome=REJECTED");
        Session working = strict.createSession(Session.SESSION_TRANSACTED);
        Clients.send(session, queue, "bad", "good");
        MessageConsumer consumer = working.createConsumer(queue);
        for (int attempt = 0; attempt < 2; attempt++) {
            assertEquals("bad", Clients.text(Clients.receive(consumer)));
            working.rollback();
        }
        assertEquals("good", Clients.text(Clients.receive(consumer)));
        working.commit();
        assertNull(consumer.receiveNoWait());
    }
}
