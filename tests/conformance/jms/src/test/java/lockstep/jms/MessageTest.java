package lockstep.jms;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertTrue;

import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.Destination;
import jakarta.jms.JMSException;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Every type of message, with its headers and properties, comes out as it went in. */
class MessageTest {
    @RegisterExtension final Clients clients = new Clients();

    private Session session;
    private Queue queue;

    @BeforeEach
    void open() throws JMSException {
        Connection connection = clients.connect("jms.deserializationPolicy.allowList=java.util");
        session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        queue = session.createQueue(clients.name("queue"));
    }

    @Test
    void text() throws JMSException {
        String text = "gr\u00fc\u00df dich \ud83d\ude80 \u0000 end";
        assertEquals(text, returned(session.createTextMessage(text), TextMessage.class).getText());
        assertEquals(null, returned(session.createTextMessage(), TextMessage.class).getText());
        assertEquals("", returned(session.createTextMessage(""), TextMessage.class).getText());
    }

    @Test
    void bytes() throws JMSException {
        BytesMessage sent = session.createBytesMessage();
        sent.writeBoolean(true);
        sent.writeInt(Integer.MIN_VALUE);
        sent.writeDouble(Math.PI);
        sent.writeUTF("\u00e4");
        sent.writeBytes(new byte[] {0, -1, 127});
        BytesMessage message = returned(sent, BytesMessage.class);
        assertTrue(message.readBoolean());
        assertEquals(Integer.MIN_VALUE, message.readInt());
        assertEquals(Math.PI, message.readDouble());
        assertEquals("\u00e4", message.readUTF());
        byte[] rest = new byte[3];
        assertEquals(3, message.readBytes(rest));
        assertArrayEquals(new byte[] {0, -1, 127}, rest);
    }

    @Test
    void map() throws JMSException {
        MapMessage sent = session.createMapMessage();
        sent.setBoolean("boolean", true);
        sent.setByte("byte", Byte.MIN_VALUE);
        sent.setShort("short", Short.MAX_VALUE);
        sent.setChar("char", '\u4e2d');
        sent.setLong("long", Long.MIN_VALUE);
        sent.setFloat("float", 1.5f);
        sent.setString("string", "text");
        sent.setString("null", null);
        sent.setBytes("bytes", new byte[] {1, 2});
        MapMessage message = returned(sent, MapMessage.class);
        assertTrue(message.getBoolean("boolean"));
        assertEquals(Byte.MIN_VALUE, message.getByte("byte"));
        assertEquals(Short.MAX_VALUE, message.getShort("short"));
        assertEquals('\u4e2d', message.getChar("char"));
        assertEquals(Long.MIN_VALUE, message.getLong("long"));
        assertEquals(1.5f, message.getFloat("float"));
        assertEquals("text", message.getString("string"));
        assertTrue(message.itemExists("null"));
        assertEquals(null, message.getString("null"));
        assertArrayEquals(new byte[] {1, 2}, message.getBytes("bytes"));
    }

    @Test
    void stream() throws JMSException {
        StreamMessage sent = session.createStreamMessage();
        sent.writeLong(7);
        sent.writeString("text");
        sent.writeBytes(new byte[] {3});
        sent.writeChar('c');
        StreamMessage message = returned(sent, StreamMessage.class);
        assertEquals(7, message.readLong());
        assertEquals("text", message.readString());
        assertEquals(1, message.readBytes(new byte[2]));
        assertEquals('c', message.readChar());
    }

    @Test
    void object() throws JMSException {
        ArrayList<String> list = new ArrayList<>(List.of("one", "two"));
        assertEquals(list, returned(session.createObjectMessage(list), ObjectMessage.class).getObject());
    }

    @Test
    void headersOfTheApplication() throws JMSException {
        Message sent = session.createTextMessage("one");
        sent.setJMSCorrelationID("correlation");
        sent.setJMSType("type");
        sent.setJMSReplyTo(session.createQueue("a.queue"));
        Message message = returned(sent, Message.class);
        assertEquals("correlation", message.getJMSCorrelationID());
        assertEquals("type", message.getJMSType());
        assertEquals(session.createQueue("a.queue"), assertInstanceOf(Queue.class, message.getJMSReplyTo()));
        assertEquals(queue, message.getJMSDestination());
        sent.setJMSReplyTo(session.createTopic("a.topic"));
        Destination topic = returned(sent, Message.class).getJMSReplyTo();
        assertEquals(session.createTopic("a.topic"), assertInstanceOf(Topic.class, topic));
    }

    @Test
    void correlationIdMayBeAMessageIdOrBytes() throws JMSException {
        Message sent = session.createTextMessage("one");
        sent.setJMSCorrelationID("ID:AMQP_UUID:1e02b1a0-59ab-4ba1-9ce7-5f6d0c1d7f6e");
        Message message = returned(sent, Message.class);
        assertEquals(sent.getJMSCorrelationID(), message.getJMSCorrelationID());
        sent.setJMSCorrelationIDAsBytes(new byte[] {0, 1, -1});
        message = returned(sent, Message.class);
        assertArrayEquals(new byte[] {0, 1, -1}, message.getJMSCorrelationIDAsBytes());
    }

    @Test
    void timestampIsThatOfSending() throws JMSException {
        long before = System.currentTimeMillis();
        Message sent = session.createTextMessage("one");
        Message message = returned(sent, Message.class);
        assertEquals(sent.getJMSTimestamp(), message.getJMSTimestamp());
        assertTrue(message.getJMSTimestamp() >= before);
    }

    @Test
    void propertiesKeepTheirTypes() throws JMSException {
        Message sent = session.createMessage();
        sent.setBooleanProperty("a_boolean", true);
        sent.setByteProperty("a_byte", (byte) -1);
        sent.setShortProperty("a_short", (short) -2);
        sent.setIntProperty("an_int", -3);
        sent.setLongProperty("a_long", Long.MAX_VALUE);
        sent.setFloatProperty("a_float", 0.5f);
        sent.setDoubleProperty("a_double", 1e300);
        sent.setStringProperty("a_string", "\u4e2d");
        sent.setStringProperty("JMSXGroupID", "group");
        sent.setIntProperty("JMSXGroupSeq", 7);
        Message message = returned(sent, Message.class);
        assertEquals(true, message.getObjectProperty("a_boolean"));
        assertEquals((byte) -1, message.getObjectProperty("a_byte"));
        assertEquals((short) -2, message.getObjectProperty("a_short"));
        assertEquals(-3, message.getObjectProperty("an_int"));
        assertEquals(Long.MAX_VALUE, message.getObjectProperty("a_long"));
        assertEquals(0.5f, message.getObjectProperty("a_float"));
        assertEquals(1e300, message.getObjectProperty("a_double"));
        assertEquals("\u4e2d", message.getObjectProperty("a_string"));
        assertEquals("group", message.getStringProperty("JMSXGroupID"));
        assertEquals(7, message.getIntProperty("JMSXGroupSeq"));
        assertEquals(1, message.getIntProperty("JMSXDeliveryCount"));
        assertTrue(message.propertyExists("a_string"));
    }

    private <T extends Message> T returned(Message sent, Class<T> type) throws JMSException {
        session.createProducer(queue).send(sent);
        try (MessageConsumer consumer = session.createConsumer(queue)) {
            return assertInstanceOf(type, Clients.receive(consumer));
        }
    }
}
