// A fast AMQP client for bench/amqp.py, on Proton's C engine (Debian's libqpid-proton11-dev).
//
// Law: it costs little beside the proxy it measures: one thread, one connection, messages encoded once, and nothing waits for
// an answer that may be pipelined.
//
//   amqp_client PORT send|receive ADDRESS MESSAGES BODY_BYTES TRANSACTION
//
// TRANSACTION is the number of messages in each transaction, 0 for none. It prints the seconds from the first message to the
// last settlement or commit, and ends with 1 if something was not accepted.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <proton/codec.h>
#include <proton/connection.h>
#include <proton/connection_driver.h>
#include <proton/delivery.h>
#include <proton/disposition.h>
#include <proton/link.h>
#include <proton/sasl.h>
#include <proton/session.h>
#include <proton/terminus.h>
#include <proton/transport.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>

namespace {

constexpr uint64_t kDeclared = 0x33, kTransactional = 0x34;
constexpr long kCredit = 2000;
constexpr int kOpenTransactions = 4;  // posted or retired while others are being committed

using Clock = std::chrono::steady_clock;

struct Transaction {
  std::string name;
  long messages = 0;
};

class Client {
 public:
  Client(int port, bool is_sender, const char* address, long messages, long body_bytes, long transaction)
      : is_sender_(is_sender), messages_(messages), size_(transaction) {
    encoded_ = std::string("\x00\x53\x70\xc0\x02\x01\x41\x00\x53\x75\xb0", 11);  // a durable header, one data section
    for (int shift = 24; shift >= 0; shift -= 8) encoded_.push_back(static_cast<char>(body_bytes >> shift));
    encoded_.append(body_bytes, 'x');
    connect_to(port);
    if (pn_connection_driver_init(&driver_, nullptr, nullptr) != 0) throw std::runtime_error("no memory");
    pn_sasl_allowed_mechs(pn_sasl(driver_.transport), "ANONYMOUS");
    pn_connection_set_container(driver_.connection, "bench");
    pn_connection_open(driver_.connection);
    pn_session_t* session = pn_session(driver_.connection);
    pn_session_set_incoming_capacity(session, 64 << 20);
    pn_session_open(session);
    if (size_) {
      coordinator_ = pn_sender(session, "coordinator");
      pn_terminus_set_type(pn_link_target(coordinator_), PN_COORDINATOR);
      pn_link_open(coordinator_);
    }
    link_ = is_sender ? pn_sender(session, "sender") : pn_receiver(session, "receiver");
    pn_terminus_set_address(is_sender ? pn_link_target(link_) : pn_link_source(link_), address);
    pn_link_open(link_);
    if (!is_sender) pn_link_flow(link_, std::min(kCredit, messages));
  }

  double run() {
    for (;;) {
      handle_all();
      if (done_ == messages_) break;
      work();
      exchange();
    }
    double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    is_closing_ = true;
    pn_connection_close(driver_.connection);
    while (pn_connection_state(driver_.connection) & PN_REMOTE_ACTIVE) {
      exchange();
      handle_all();
    }
    return seconds;
  }

 private:
  // --- bytes ---

  void connect_to(int port) {
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    if (connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) throw std::runtime_error("no connection");
    int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(socket_, F_SETFL, O_NONBLOCK);
  }

  // Writes and reads what it can, and waits if it can do neither.
  void exchange() {
    bool has_moved = false;
    pn_bytes_t out = pn_connection_driver_write_buffer(&driver_);
    if (out.size) {
      ssize_t count = send(socket_, out.start, out.size, MSG_NOSIGNAL);
      if (count > 0) pn_connection_driver_write_done(&driver_, count), has_moved = true;
    }
    pn_rwbytes_t in = pn_connection_driver_read_buffer(&driver_);
    if (in.size) {
      ssize_t count = recv(socket_, in.start, in.size, 0);
      if (count == 0) throw std::runtime_error("the proxy closed the connection");
      if (count > 0) pn_connection_driver_read_done(&driver_, count), has_moved = true;
    }
    if (has_moved || pn_connection_driver_has_event(&driver_)) return;
    pollfd waiting{socket_, static_cast<short>(POLLIN | (out.size ? POLLOUT : 0)), 0};
    if (poll(&waiting, 1, 20'000) == 0) throw std::runtime_error("nothing happens for 20 seconds");
  }

  // --- what happens ---

  void handle_all() {
    for (pn_event_t* event; (event = pn_connection_driver_next_event(&driver_));) handle(event);
  }

  void handle(pn_event_t* event) {
    if (is_closing_) return;
    switch (pn_event_type(event)) {
      case PN_DELIVERY:
        on_delivery(pn_event_delivery(event));
        break;
      case PN_LINK_REMOTE_CLOSE:
      case PN_CONNECTION_REMOTE_CLOSE:
      case PN_TRANSPORT_ERROR:
        throw std::runtime_error(std::string("ended by ") + pn_event_type_name(pn_event_type(event)));
      default:
        break;
    }
  }

  void on_delivery(pn_delivery_t* delivery) {
    pn_link_t* link = pn_delivery_link(delivery);
    if (link == coordinator_) {
      if (pn_delivery_remote_state(delivery)) on_answer(delivery);
    } else if (is_sender_) {
      if (!pn_delivery_settled(delivery)) return;
      uint64_t state = pn_delivery_remote_state(delivery);
      if (state != (size_ ? kTransactional : PN_ACCEPTED)) throw std::runtime_error("a message was not accepted");
      pn_delivery_settle(delivery);
      if (!size_) ++done_;
    } else {
      on_message(delivery);
    }
  }

  void on_message(pn_delivery_t* delivery) {
    if (pn_delivery_partial(delivery)) return;
    begin();
    pn_link_recv(link_, buffer_, sizeof buffer_);
    pn_link_advance(link_);
    received_++;
    if (size_) {
      held_.push_back(delivery);
      return;
    }
    pn_delivery_update(delivery, PN_ACCEPTED);
    pn_delivery_settle(delivery);
    ++done_;
  }

  void on_answer(pn_delivery_t* delivery) {
    auto discharge = discharges_.find(delivery);
    if (discharge == discharges_.end()) {
      if (pn_delivery_remote_state(delivery) != kDeclared) throw std::runtime_error("not declared");
      pn_data_t* data = pn_disposition_data(pn_delivery_remote(delivery));
      pn_data_rewind(data);
      pn_data_next(data);
      pn_data_enter(data);
      pn_data_next(data);
      pn_bytes_t name = pn_data_get_binary(data);
      if (!name.size) throw std::runtime_error("a transaction without a name");
      declared_.push_back({std::string(name.start, name.size)});
    } else {
      if (pn_delivery_remote_state(delivery) != PN_ACCEPTED) throw std::runtime_error("a commit failed");
      done_ += discharge->second;
      discharges_.erase(discharge);
      --open_;
    }
    pn_delivery_settle(delivery);
  }

  // --- what to do ---

  void work() {
    if (size_) declare();
    if (is_sender_) send_messages();
    else if (size_) retire();
    if (!is_sender_) {
      long missing = std::min(kCredit, messages_ - received_) - pn_link_credit(link_) - static_cast<long>(held_.size());
      if (missing > kCredit / 2 || (missing > 0 && messages_ - received_ <= kCredit)) pn_link_flow(link_, missing);
    }
  }

  void send_messages() {
    while (sent_ < messages_ && pn_link_credit(link_) > 0) {
      if (size_ && declared_.empty()) return;
      begin();
      pn_delivery_t* delivery = start(link_);
      pn_link_send(link_, encoded_.data(), encoded_.size());
      if (size_) put_transaction(delivery, false);
      pn_link_advance(link_);
      ++sent_;
      if (size_) count_in_transaction(sent_ == messages_);
    }
  }

  void retire() {
    while (!held_.empty() && !declared_.empty()) {
      pn_delivery_t* delivery = held_.front();
      held_.pop_front();
      put_transaction(delivery, true);
      pn_delivery_settle(delivery);
      count_in_transaction(++retired_ == messages_);
    }
  }

  void put_transaction(pn_delivery_t* delivery, bool is_accepted) {
    pn_data_t* data = pn_disposition_data(pn_delivery_local(delivery));
    const std::string& name = declared_.front().name;
    pn_data_put_list(data);
    pn_data_enter(data);
    pn_data_put_binary(data, pn_bytes(name.size(), name.data()));
    if (is_accepted) {
      pn_data_put_described(data);
      pn_data_enter(data);
      pn_data_put_ulong(data, PN_ACCEPTED);
      pn_data_put_list(data);
      pn_data_exit(data);
    }
    pn_data_exit(data);
    pn_delivery_update(delivery, kTransactional);
  }

  void count_in_transaction(bool is_last) {
    Transaction& transaction = declared_.front();
    if (++transaction.messages < size_ && !is_last) return;
    std::string name = transaction.name;
    std::string body("\x00\x53\x32\xc0", 4);  // discharge: a list of the name and false
    body.push_back(static_cast<char>(name.size() + 4));
    body += std::string("\x02\xa0", 2);
    body.push_back(static_cast<char>(name.size()));
    body += name + '\x42';
    discharges_[request(body)] = transaction.messages;
    declared_.pop_front();
  }

  void declare() {
    long needed = (messages_ + size_ - 1) / size_;
    while (open_ < kOpenTransactions && begun_ < needed && pn_link_credit(coordinator_) > 0) {
      ++open_;
      ++begun_;
      request(std::string("\x00\x53\x31\x45", 4));
    }
  }

  pn_delivery_t* request(const std::string& described) {
    pn_delivery_t* delivery = start(coordinator_);
    std::string message = std::string("\x00\x53\x77", 3) + described;
    pn_link_send(coordinator_, message.data(), message.size());
    pn_link_advance(coordinator_);
    return delivery;
  }

  pn_delivery_t* start(pn_link_t* link) {
    ++tag_;
    return pn_delivery(link, pn_dtag(reinterpret_cast<const char*>(&tag_), sizeof tag_));
  }

  void begin() {
    if (has_begun_) return;
    has_begun_ = true;
    begin_ = Clock::now();
  }

  bool is_sender_;
  long messages_, size_;
  long sent_ = 0, received_ = 0, retired_ = 0, done_ = 0, open_ = 0, begun_ = 0;
  uint64_t tag_ = 0;
  int socket_ = -1;
  bool has_begun_ = false, is_closing_ = false;
  Clock::time_point begin_;
  std::string encoded_;
  pn_connection_driver_t driver_{};
  pn_link_t* link_ = nullptr;
  pn_link_t* coordinator_ = nullptr;
  std::deque<Transaction> declared_;
  std::deque<pn_delivery_t*> held_;
  std::map<pn_delivery_t*, long> discharges_;
  char buffer_[1 << 20];
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 7) {
    std::fprintf(stderr, "usage: amqp_client PORT send|receive ADDRESS MESSAGES BODY_BYTES TRANSACTION\n");
    return 2;
  }
  try {
    bool is_sender = std::strcmp(arguments[2], "send") == 0;
    static Client client(std::atoi(arguments[1]), is_sender, arguments[3], std::atol(arguments[4]),
                         std::atol(arguments[5]), std::atol(arguments[6]));
    std::printf("%.6f\n", client.run());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "amqp_client: %s\n", error.what());
    return 1;
  }
  return 0;
}
