package lockstep.jms;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Local transactions: what is sent and received in one happens by its commit, or not at all. */
class TransactionTest {
    @RegisterExtension final Clients clients = new Clients();

    private Connection connection;
    private Session working;
    private Session looking;
    private Queue queue;
    private Queue target;

    @BeforeEach
    void open() throws JMSException {
        connection = clients.connect();
        working = connection.createSession(Session.SESSION_TRANSACTED);
        looking = clients.connect().createSession(Session.AUTO_ACKNOWLEDGE);
        queue = working.createQueue(clients.name("queue"));
        target = working.createQueue(clients.name("target"));
    }

    @Test
    void sentMessagesAppearByTheCommit() throws JMSException {
        Clients.sendNumbers(working, queue, 10);
        try (MessageConsumer consumer = looking.createConsumer(queue)) {
            assertNull(consumer.receiveNoWait());
            working.commit();
            Clients.assertOnly(Clients.numbers(0, 10), consumer);
        }
    }

    @Test
    void sentMessagesVanishByTheRollback() throws JMSException {
        Clients.sendNumbers(working, queue, 10);
        working.rollback();
        Clients.send(working, queue, "kept");
        working.commit();
        assertHolds(List.of("kept"), queue);
    }

    @Test
    void commitFailsWithTheReasonWhenAMessageOfItIsRefused() throws JMSException {
        Clients.send(working, queue, "one");
        Queue impossible = working.createQueue("no\nqueue");
        MessageProducer anywhere = working.createProducer(null);
        JMSException refused = assertThrows(JMSException.class, () -> {
            anywhere.send(impossible, working.createTextMessage("two"));
            working.commit();
        });
        assertTrue(refused.getMessage().contains("control character"), refused.getMessage());
        working.rollback();
        assertHolds(List.of(), queue);
    }

    @Test
    void receivedMessagesAreGoneByTheCommit() throws JMSException {
        Clients.sendNumbers(looking, queue, 10);
        assertEquals(Clients.numbers(0, 6), Clients.texts(working.createConsumer(queue), 6));
        working.commit();
        working.close();
        assertHolds(Clients.numbers(6, 10), queue);
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 1, 3, 1000})
    void rolledBackMessagesAreDeliveredAgainInOrder(int prefetch) throws JMSException {
        Clients.sendNumbers(looking, queue, 20);
        Connection other = clients.connect("jms.prefetchPolicy.all=" + prefetch);
        working = other.createSession(Session.SESSION_TRANSACTED);
        MessageConsumer consumer = working.createConsumer(queue);
        assertEquals(Clients.numbers(0, 7), Clients.texts(consumer, 7));
        working.rollback();
        for (int number = 0; number < 20; number++) {
            Message message = Clients.receive(consumer);
            assertEquals(Integer.toString(number), Clients.text(message));
            assertEquals(number < 7, message.getJMSRedelivered(), "redelivered: " + number);
            assertEquals(number < 7 ? 2 : 1, message.getIntProperty("JMSXDeliveryCount"));
        }
        working.commit();
        assertHolds(List.of(), queue);
    }

    @Test
    void deliveryCountGrowsWithEveryRollback() throws JMSException {
        Clients.send(looking, queue, "one");
        MessageConsumer consumer = working.createConsumer(queue);
        for (int count = 1; count <= 5; count++) {
            assertEquals(count, Clients.receive(consumer).getIntProperty("JMSXDeliveryCount"));
            working.rollback();
        }
        assertEquals(6, Clients.receive(consumer).getIntProperty("JMSXDeliveryCount"));
        working.commit();
    }

    @Test
    void messagesMoveBetweenQueuesInOneTransaction() throws JMSException {
        Clients.sendNumbers(looking, queue, 30);
        MessageConsumer consumer = working.createConsumer(queue);
        MessageProducer producer = working.createProducer(target);
        for (int batch = 0; batch < 6; batch++) {
            for (int count = 0; count < 5; count++) {
                producer.send(working.createTextMessage(Clients.text(Clients.receive(consumer))));
            }
            if (batch % 2 == 0) {
                working.commit();
            } else {
                working.rollback();
            }
        }
        // Batches 0, 2, 4 were kept; what 5 rolled back comes again.
        assertHolds(Clients.numbers(0, 15), target);
        working.close();
        assertHolds(Clients.numbers(15, 30), queue);
    }

    @Test
    void transactionTouchesManyQueues() throws JMSException {
        List<Queue> queues = new ArrayList<>();
        MessageProducer producer = working.createProducer(null);
        for (int number = 0; number < 12; number++) {
            queues.add(working.createQueue(clients.name("queue" + number)));
            producer.send(queues.get(number), working.createTextMessage("rolled back"));
        }
        working.rollback();
        for (Queue each : queues) {
            producer.send(each, working.createTextMessage("one"));
        }
        for (Queue each : queues) {
            try (MessageConsumer consumer = looking.createConsumer(each)) {
                assertNull(consumer.receiveNoWait());
            }
        }
        working.commit();
        for (Queue each : queues) {
            assertHolds(List.of("one"), each);
        }
    }

    @Test
    void manyMessagesInOneTransaction() throws JMSException {
        int count = 3_000;
        Clients.sendNumbers(working, queue, count);
        working.commit();
        MessageConsumer consumer = working.createConsumer(queue);
        assertEquals(Clients.numbers(0, count), Clients.texts(consumer, count));
        working.rollback();
        assertEquals(Clients.numbers(0, count), Clients.texts(consumer, count));
        working.commit();
        assertNull(consumer.receiveNoWait());
    }

    @Test
    void manyTransactionsOneAfterAnother() throws JMSException {
        MessageConsumer consumer = working.createConsumer(queue);
        MessageProducer producer = working.createProducer(queue);
        for (String text : Clients.numbers(0, 50)) {
            producer.send(working.createTextMessage(text));
            working.commit();
            assertEquals(text, Clients.text(Clients.receive(consumer)));
            working.commit();
        }
        assertNull(consumer.receiveNoWait());
    }

    @Test
    void closedSessionIsRolledBack() throws JMSException {
        Clients.sendNumbers(looking, queue, 10);
        assertEquals(Clients.numbers(0, 4), Clients.texts(working.createConsumer(queue), 4));
        Clients.send(working, target, "one");
        working.close();
        assertHolds(List.of(), target);
        assertRedelivered(4, 10);
    }

    @Test
    void closedConnectionIsRolledBack() throws JMSException {
        Clients.sendNumbers(looking, queue, 10);
        assertEquals(Clients.numbers(0, 4), Clients.texts(working.createConsumer(queue), 4));
        Clients.send(working, target, "one");
        connection.close();
        assertHolds(List.of(), target);
        assertRedelivered(4, 10);
    }

    @Test
    void consumerMayBeClosedBeforeTheCommit() throws JMSException {
        Clients.sendNumbers(looking, queue, 10);
        try (MessageConsumer consumer = working.createConsumer(queue)) {
            assertEquals(Clients.numbers(0, 4), Clients.texts(consumer, 4));
        }
        working.commit();
        assertHolds(Clients.numbers(4, 10), queue);
    }

    @Test
    void consumerMayBeClosedBeforeTheRollback() throws JMSException {
        Clients.sendNumbers(looking, queue, 10);
        try (MessageConsumer consumer = working.createConsumer(queue)) {
            assertEquals(Clients.numbers(0, 4), Clients.texts(consumer, 4));
        }
        working.rollback();
        assertHolds(Clients.numbers(0, 10), queue);
    }

    @Test
    void receivedMessagesAreWithheldFromOthersUntilTheRollback() throws JMSException {
        Clients.send(looking, queue, "one");
        MessageConsumer consumer = working.createConsumer(queue);
        assertEquals("one", Clients.text(Clients.receive(consumer)));
        consumer.close();
        try (MessageConsumer other = looking.createConsumer(queue)) {
            assertNull(other.receiveNoWait());
            working.rollback();
            Message message = Clients.receive(other);
            assertEquals("one", Clients.text(message));
            assertTrue(message.getJMSRedelivered());
        }
    }

    @Test
    void sessionsOfOneConnectionHaveTransactionsOfTheirOwn() throws JMSException {
        Session other = connection.createSession(Session.SESSION_TRANSACTED);
        Clients.send(working, queue, "one");
        Clients.send(other, queue, "two");
        other.commit();
        working.rollback();
        assertHolds(List.of("two"), queue);
    }

    @Test
    void emptyTransactionsEnd() throws JMSException {
        working.commit();
        working.rollback();
        assertNull(working.createConsumer(queue).receiveNoWait());
        working.commit();
    }

    private void assertRedelivered(int redelivered, int count) throws JMSException {
        try (MessageConsumer consumer = looking.createConsumer(queue)) {
            for (int number = 0; number < count; number++) {
                Message message = Clients.receive(consumer);
                assertEquals(Integer.toString(number), Clients.text(message));
                if (number < redelivered) {
                    assertTrue(message.getJMSRedelivered(), "redelivered: " + number);
                }
            }
            assertNull(consumer.receiveNoWait());
        }
    }

    private void assertHolds(List<String> expected, Queue from) throws JMSException {
        try (MessageConsumer consumer = looking.createConsumer(from)) {
            Clients.assertOnly(expected, consumer);
        }
    }
}
