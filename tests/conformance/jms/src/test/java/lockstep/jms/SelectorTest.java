package lockstep.jms;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.InvalidSelectorException;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.Topic;
import java.util.List;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Selectors on queues, where what does not match stays for others, and on topics, where it is not kept. */
class SelectorTest {
    @RegisterExtension final Clients clients = new Clients();

    private Connection connection;
    private Session session;
    private Queue queue;

    @BeforeEach
    void open() throws JMSException {
        // What is sent is there when send() returns, even if it is not persistent.
        connection = clients.connect("jms.forceSyncSend=true");
        session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        queue = session.createQueue(clients.name("queue"));
    }

    @Test
    void whatDoesNotMatchStaysForOthers() throws JMSException {
        MessageProducer producer = session.createProducer(queue);
        for (int number = 0; number < 20; number++) {
            producer.send(numbered(number));
        }
        try (MessageConsumer even = session.createConsumer(queue, "number > 9 AND parity = 'even'")) {
            Clients.assertOnly(List.of("10", "12", "14", "16", "18"), even);
        }
        try (MessageConsumer odd = session.createConsumer(queue, "parity = 'odd'")) {
            Clients.assertOnly(List.of("1", "3", "5", "7", "9", "11", "13", "15", "17", "19"), odd);
        }
        Clients.assertHolds(List.of("0", "2", "4", "6", "8"), connection, queue);
    }

    @Test
    void consumersWithDifferentSelectorsShareAQueue() throws JMSException {
        MessageConsumer odd = session.createConsumer(queue, "parity = 'odd'");
        MessageConsumer even = session.createConsumer(queue, "parity = 'even'");
        MessageProducer producer = session.createProducer(queue);
        for (int number = 0; number < 10; number++) {
            producer.send(numbered(number));
        }
        assertEquals(List.of("1", "3", "5", "7", "9"), Clients.texts(odd, 5));
        assertEquals(List.of("0", "2", "4", "6", "8"), Clients.texts(even, 5));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '"',
            value = {
                "name = 'one'                          | true",
                "name <> 'one'                         | false",
                "name LIKE 'o_e' AND name LIKE 'o%'    | true",
                "name LIKE 'o!_%' ESCAPE '!'           | false",
                "name IN ('zero', 'one')               | true",
                "name NOT IN ('zero', 'one')           | false",
                "number BETWEEN 1 AND 3                | true",
                "number NOT BETWEEN 1 AND 3            | false",
                "number + 1 = 3 AND number * 2.5 = 5   | true",
                "-number < 0 AND number / 4.0 = 0.5    | true",
                "price >= 1.25e0                       | true",
                "flag                                  | true",
                "NOT flag OR flag = FALSE              | false",
                "missing IS NULL                       | true",
                "missing IS NOT NULL                   | false",
                "missing = 1                           | false",
                "NOT (missing = 1)                     | false",
                "missing = 1 OR number = 2             | true",
                "name = 2                              | false",
                "name = 'it''s'                        | false",
                "JMSPriority = 7                       | true",
                "JMSDeliveryMode = 'NON_PERSISTENT'    | true",
                "JMSType = 'kind'                      | true",
                "JMSCorrelationID = 'correlation'      | true",
                "JMSMessageID IS NOT NULL              | true",
                "JMSTimestamp > 1600000000000          | true",
            })
    void selectorIsEvaluated(String selector, boolean matches) throws JMSException {
        MessageProducer producer = session.createProducer(queue);
        Message message = session.createTextMessage("chosen");
        message.setStringProperty("name", "one");
        message.setIntProperty("number", 2);
        message.setDoubleProperty("price", 1.25);
        message.setBooleanProperty("flag", true);
        message.setJMSType("kind");
        message.setJMSCorrelationID("correlation");
        producer.send(message, DeliveryMode.NON_PERSISTENT, 7, 0);
        try (MessageConsumer consumer = session.createConsumer(queue, selector)) {
            Clients.assertOnly(matches ? List.of("chosen") : List.of(), consumer);
        }
    }

    @Test
    void messageIdSelectsItsMessage() throws JMSException {
        MessageProducer producer = session.createProducer(queue);
        producer.send(numbered(1));
        Message wanted = numbered(2);
        producer.send(wanted);
        String selector = "JMSMessageID = '" + wanted.getJMSMessageID() + "'";
        try (MessageConsumer consumer = session.createConsumer(queue, selector)) {
            Clients.assertOnly(List.of("2"), consumer);
        }
    }

    @Test
    void malformedSelectorIsRefused() {
        assertThrows(InvalidSelectorException.class, () -> session.createConsumer(queue, "number >"));
    }

    @Test
    void subscriberOfATopicGetsWhatMatches() throws JMSException {
        Topic topic = session.createTopic(clients.name("topic"));
        MessageConsumer odd = session.createConsumer(topic, "parity = 'odd'");
        MessageConsumer all = session.createConsumer(topic);
        MessageProducer producer = session.createProducer(topic);
        for (int number = 0; number < 6; number++) {
            producer.send(numbered(number));
        }
        assertEquals(Clients.numbers(0, 6), Clients.texts(all, 6));
        Clients.assertOnly(List.of("1", "3", "5"), odd);
    }

    @Test
    void selectedMessagesAreRolledBackToTheirPlaces() throws JMSException {
        MessageProducer producer = session.createProducer(queue);
        for (int number = 0; number < 6; number++) {
            producer.send(numbered(number));
        }
        Session working = connection.createSession(Session.SESSION_TRANSACTED);
        assertEquals(List.of("1", "3"), Clients.texts(working.createConsumer(queue, "parity = 'odd'"), 2));
        working.rollback();
        working.close();
        Clients.assertHolds(Clients.numbers(0, 6), connection, queue);
    }

    private Message numbered(int number) throws JMSException {
        Message message = session.createTextMessage(Integer.toString(number));
        message.setIntProperty("number", number);
        message.setStringProperty("parity", number % 2 == 0 ? "even" : "odd");
        return message;
    }
}
