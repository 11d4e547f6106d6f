package lockstep.jms;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.Socket;
import java.nio.charset.StandardCharsets;

/** Whoever started the cluster does what a test asks for: a line with the wish, a line "ok" when it is done. */
final class Cluster {
    private static final String CONTROL = System.getProperty("lockstep.control", "");

    private Cluster() {}

    /** Whether there is somebody who does it. */
    static boolean isControlled() {
        return !CONTROL.isEmpty();
    }

    /** Kills the proxy of this place in {@link Clients#PROXIES}; returns when it is dead. */
    static void killProxy(int place) {
        ask("kill-proxy " + place);
    }

    /** Starts the proxy of this place again; returns when it listens. */
    static void startProxy(int place) {
        ask("start-proxy " + place);
    }

    /** Stalls the proxy of this place for longer than its session lasts; returns when it goes on. */
    static void stallProxy(int place) {
        ask("stall-proxy " + place);
    }

    /** Kills every broker in turn that is the primary of a set, and starts it again when another serves it. */
    static void killPrimaries() {
        ask("kill-primaries");
    }

    private static void ask(String wish) {
        String[] address = CONTROL.split(":");
        try (Socket socket = new Socket(address[0], Integer.parseInt(address[1]))) {
            socket.getOutputStream().write((wish + "\n").getBytes(StandardCharsets.UTF_8));
            BufferedReader answers =
                    new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
            String answer = answers.readLine();
            if (!"ok".equals(answer)) {
                throw new IllegalStateException(wish + ": " + answer);
            }
        } catch (IOException error) {
            throw new UncheckedIOException(wish, error);
        }
    }
}
