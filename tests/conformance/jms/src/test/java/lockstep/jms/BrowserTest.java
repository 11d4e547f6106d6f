package lockstep.jms;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.List;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Looking into a queue takes nothing out of it. */
class BrowserTest {
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
    void emptyQueueHasNothingToSee() throws JMSException {
        try (QueueBrowser browser = session.createBrowser(queue)) {
            assertFalse(browser.getEnumeration().hasMoreElements());
        }
    }

    @Test
    void everythingIsSeenInOrderAndStays() throws JMSException {
        Clients.sendNumbers(session, queue, 50);
        assertEquals(Clients.numbers(0, 50), seen(null));
        assertEquals(Clients.numbers(0, 50), seen(null));
        MessageConsumer consumer = session.createConsumer(queue);
        Message first = Clients.receive(consumer);
        assertFalse(first.getJMSRedelivered());
        assertEquals("0", Clients.text(first));
        assertEquals(Clients.numbers(1, 50), Clients.texts(consumer, 49));
    }

    @Test
    void moreIsSeenThanThePrefetch() throws JMSException {
        Connection other = clients.connect("jms.prefetchPolicy.all=10");
        Session sending = other.createSession(Session.SESSION_TRANSACTED);
        Clients.sendNumbers(sending, queue, 500);
        sending.commit();
        session = other.createSession(Session.AUTO_ACKNOWLEDGE);
        assertEquals(Clients.numbers(0, 500), seen(null));
    }

    @Test
    void selectorChoosesWhatIsSeen() throws JMSException {
        MessageProducer producer = session.createProducer(queue);
        for (int number = 0; number < 20; number++) {
            Message message = session.createTextMessage(Integer.toString(number));
            message.setIntProperty("third", number % 3);
            producer.send(message);
        }
        assertEquals(List.of("2", "5", "8", "11", "14", "17"), seen("third = 2"));
        assertEquals(List.of(), seen("third = 3"));
        Clients.assertHolds(Clients.numbers(0, 20), connection, queue);
    }

    @Test
    void twoBrowsersAndAConsumerDoNotDisturbEachOther() throws JMSException {
        Clients.sendNumbers(session, queue, 10);
        QueueBrowser one = session.createBrowser(queue);
        QueueBrowser two = session.createBrowser(queue);
        assertEquals(Clients.numbers(0, 10), texts(one));
        assertEquals(Clients.numbers(0, 10), texts(two));
        one.close();
        two.close();
        MessageConsumer consumer = session.createConsumer(queue);
        assertEquals(Clients.numbers(0, 4), Clients.texts(consumer, 4));
        consumer.close();
        assertEquals(Clients.numbers(4, 10), seen(null));
    }

    @Test
    void uncommittedMessagesAreNotSeen() throws JMSException {
        Session working = connection.createSession(Session.SESSION_TRANSACTED);
        Clients.send(working, queue, "one");
        assertEquals(List.of(), seen(null));
        working.commit();
        assertEquals(List.of("one"), seen(null));
    }

    private List<String> seen(String selector) throws JMSException {
        try (QueueBrowser browser = session.createBrowser(queue, selector)) {
            return texts(browser);
        }
    }

    private static List<String> texts(QueueBrowser browser) throws JMSException {
        List<String> texts = new ArrayList<>();
        Enumeration<?> messages = browser.getEnumeration();
        while (messages.hasMoreElements()) {
            texts.add(Clients.text((Message) messages.nextElement()));
        }
        return texts;
    }
}
