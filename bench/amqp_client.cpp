// Load through Lockstep's proxy, on Proton's C engine (Debian's libqpid-proton11-dev): one thread and one connection for each
// client.
//
// Law: it works as bench/load.py does: it prepares, says "ready", waits for a line, runs through its warm-up and then counts what
// begins in so many seconds; then it prints one line of JSON and waits for the end of its input. It costs little beside the proxy
// that it measures: messages are encoded once, and nothing waits for an answer that may be pipelined. A connection has one
// transaction with work in it; the next one is declared meanwhile.
//
//   amqp_client PORT WORKLOAD PREFIX CONNECTIONS SIZE BODY_BYTES WARM_SECONDS SECONDS
//
// WORKLOAD is one of
//   publish   transactions of SIZE messages into the queue PREFIX-n
//   move      transactions that take SIZE messages from PREFIX-n-a and publish SIZE into PREFIX-n-b, to and fro
//   stream    durable messages, at most SIZE of them unsettled
//   consume   SIZE messages of each connection's queue, sent before, taken and settled
// The queues are there already.

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
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr uint64_t kDeclared = 0x33, kTransactional = 0x34;
constexpr long kCredit = 1000, kMoved = 1000, kFillWindow = 1000, kWithoutEnd = -1;
constexpr int kDeclaredAhead = 2;

enum class Workload { kPublish, kMove, kStream, kConsume };

int64_t now_us() {
  using namespace std::chrono;
  return duration_cast<microseconds>(steady_clock::now().time_since_epoch()).count();
}

struct Order {
  int port;
  Workload workload;
  std::vector<std::string> queues;
  long size, body_bytes;
  long limit = kWithoutEnd;  // messages in all; without it the time ends the work
};

// What begins between `first` and `last` counts.
struct Counts {
  int64_t first = 0, last = 0;
  uint64_t operations = 0, messages = 0;
  std::vector<uint32_t> latencies_us;

  void count(int64_t start, long number) {
    if (start < first || start >= last) return;
    ++operations;
    messages += number;
    latencies_us.push_back(static_cast<uint32_t>(now_us() - start));
  }
};

class Client {
 public:
  explicit Client(const Order& order) : order_(order) {
    encoded_ = std::string("\x00\x53\x70\xc0\x02\x01\x41\x00\x53\x75\xb0", 11);  // a durable header, one data section
    for (int shift = 24; shift >= 0; shift -= 8) encoded_.push_back(static_cast<char>(order.body_bytes >> shift));
    encoded_.append(order.body_bytes, 'x');
    connect_to(order.port);
    if (pn_connection_driver_init(&driver_, nullptr, nullptr) != 0) throw std::runtime_error("no memory");
    pn_sasl_allowed_mechs(pn_sasl(driver_.transport), "ANONYMOUS");
    pn_connection_set_container(driver_.connection, "bench");
    pn_connection_open(driver_.connection);
    session_ = pn_session(driver_.connection);
    pn_session_set_incoming_capacity(session_, 64 << 20);
    pn_session_open(session_);
    if (is_transactional()) {
      coordinator_ = pn_sender(session_, "coordinator");
      pn_terminus_set_type(pn_link_target(coordinator_), PN_COORDINATOR);
      pn_link_open(coordinator_);
    }
    for (const std::string& queue : order.queues) {
      if (order.workload != Workload::kConsume) senders_.push_back(attach(queue, true));
      if (order.workload == Workload::kConsume || order.workload == Workload::kMove) receivers_.push_back(attach(queue, false));
    }
    held_.resize(receivers_.size());
    while (!(pn_connection_state(driver_.connection) & PN_REMOTE_ACTIVE)) turn();
  }

  ~Client() {
    pn_connection_driver_destroy(&driver_);
    close(socket_);
  }

  // Until the limit, or the end of the time, and everything is answered.
  void run(Counts* counts) {
    counts_ = counts;
    for (size_t which = 0; which < receivers_.size(); ++which) pn_link_flow(receivers_[which], first_credit());
    for (;;) {
      handle_all();
      work();
      if (is_over()) break;
      exchange();
    }
    is_closing_ = true;
    pn_connection_close(driver_.connection);
    while (pn_connection_state(driver_.connection) & PN_REMOTE_ACTIVE) turn();
  }

 private:
  bool is_transactional() const { return order_.workload == Workload::kPublish || order_.workload == Workload::kMove; }

  bool is_over() const {
    if (order_.limit != kWithoutEnd) return done_ >= order_.limit;
    return now_us() >= counts_->last && !is_working_ && unsettled_ == 0;
  }

  long first_credit() const {
    if (order_.workload == Workload::kMove) return 10 * order_.size;
    return order_.limit == kWithoutEnd ? kCredit : std::min(kCredit, order_.limit);
  }

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
    if (poll(&waiting, 1, 30'000) == 0) throw std::runtime_error("nothing happens for 30 seconds");
  }

  void turn() {
    exchange();
    handle_all();
  }

  pn_link_t* attach(const std::string& queue, bool is_sender) {
    std::string name = (is_sender ? "to " : "from ") + queue;
    pn_link_t* link = is_sender ? pn_sender(session_, name.c_str()) : pn_receiver(session_, name.c_str());
    pn_terminus_set_address(is_sender ? pn_link_target(link) : pn_link_source(link), queue.c_str());
    pn_link_open(link);
    return link;
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

  /// What the proxy says of a message that it does not take.
  static std::string refusal(pn_delivery_t* delivery, uint64_t state) {
    pn_condition_t* condition = pn_disposition_condition(pn_delivery_remote(delivery));
    if (!pn_condition_is_set(condition)) return "state " + std::to_string(state);
    const char* description = pn_condition_get_description(condition);
    return std::string(pn_condition_get_name(condition)) + (description ? std::string(" ") + description : "");
  }

  void on_delivery(pn_delivery_t* delivery) {
    pn_link_t* link = pn_delivery_link(delivery);
    if (link == coordinator_) {
      if (pn_delivery_remote_state(delivery)) on_answer(delivery);
    } else if (pn_link_is_sender(link)) {
      if (!pn_delivery_settled(delivery)) return;
      uint64_t state = pn_delivery_remote_state(delivery);
      if (state != (is_transactional() ? kTransactional : PN_ACCEPTED)) throw std::runtime_error("a message was not accepted: " + refusal(delivery, state));
      if (!is_transactional()) {
        counts_->count(reinterpret_cast<int64_t>(pn_delivery_get_context(delivery)), 1);
        --unsettled_;
        ++done_;
      }
      pn_delivery_settle(delivery);
    } else {
      on_message(delivery, link);
    }
  }

  void on_message(pn_delivery_t* delivery, pn_link_t* link) {
    if (pn_delivery_partial(delivery)) return;
    pn_link_recv(link, buffer_.data(), buffer_.size());
    pn_link_advance(link);
    if (order_.workload == Workload::kMove) {
      held_[link == receivers_[0] ? 0 : 1].push_back(delivery);
      return;
    }
    pn_delivery_update(delivery, PN_ACCEPTED);
    pn_delivery_settle(delivery);
    ++done_;
    long left = order_.limit - done_;
    long missing = std::min(kCredit, left) - pn_link_credit(link);
    if (missing > kCredit / 2 || (missing > 0 && left <= kCredit)) pn_link_flow(link, missing);
  }

  void on_answer(pn_delivery_t* delivery) {
    if (delivery == discharge_) {
      if (pn_delivery_remote_state(delivery) != PN_ACCEPTED) throw std::runtime_error("a commit failed");
      counts_->count(start_, (order_.workload == Workload::kMove ? 2 : 1) * order_.size);
      discharge_ = nullptr;
      is_working_ = false;
      source_ = order_.workload == Workload::kMove ? 1 - source_ : 0;
    } else {
      if (pn_delivery_remote_state(delivery) != kDeclared) throw std::runtime_error("not declared");
      pn_data_t* data = pn_disposition_data(pn_delivery_remote(delivery));
      pn_data_rewind(data);
      pn_data_next(data);
      pn_data_enter(data);
      pn_data_next(data);
      pn_bytes_t name = pn_data_get_binary(data);
      if (!name.size) throw std::runtime_error("a transaction without a name");
      declared_.emplace_back(name.start, name.size);
      --declaring_;
    }
    pn_delivery_settle(delivery);
  }

  // --- what to do ---

  void work() {
    if (is_transactional()) {
      declare();
      transact();
    } else if (order_.workload == Workload::kStream) {
      stream();
    }
  }

  void stream() {
    long window = order_.limit == kWithoutEnd ? order_.size : kFillWindow;
    while (unsettled_ < window && pn_link_credit(senders_[0]) > 0) {
      int64_t start = now_us();
      if (order_.limit == kWithoutEnd ? start >= counts_->last : sent_ == order_.limit) return;
      pn_delivery_t* delivery = begin_delivery(senders_[0]);
      pn_delivery_set_context(delivery, reinterpret_cast<void*>(start));
      pn_link_send(senders_[0], encoded_.data(), encoded_.size());
      pn_link_advance(senders_[0]);
      ++sent_;
      ++unsettled_;
    }
  }

  void transact() {
    if (!is_working_) {
      if (declared_.empty() || now_us() >= counts_->last) return;
      if (order_.workload == Workload::kMove && static_cast<long>(held_[source_].size()) < order_.size) return;
      is_working_ = true;
      start_ = now_us();
      posted_ = 0;
      if (order_.workload == Workload::kMove) take();
    }
    if (discharge_) return;
    pn_link_t* link = senders_[order_.workload == Workload::kMove ? 1 - source_ : 0];
    for (; posted_ < order_.size && pn_link_credit(link) > 0; ++posted_) {
      pn_delivery_t* delivery = begin_delivery(link);
      pn_link_send(link, encoded_.data(), encoded_.size());
      put_transaction(delivery, false);
      pn_link_advance(link);
    }
    if (posted_ == order_.size) discharge();
  }

  void take() {
    for (long number = 0; number < order_.size; ++number) {
      pn_delivery_t* delivery = held_[source_].front();
      held_[source_].pop_front();
      put_transaction(delivery, true);
      pn_delivery_settle(delivery);
    }
    pn_link_flow(receivers_[source_], order_.size);
  }

  void put_transaction(pn_delivery_t* delivery, bool is_accepted) {
    pn_data_t* data = pn_disposition_data(pn_delivery_local(delivery));
    const std::string& name = declared_.front();
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

  void discharge() {
    const std::string name = declared_.front();
    declared_.pop_front();
    std::string body("\x00\x53\x32\xc0", 4);  // discharge: a list of the name and false
    body.push_back(static_cast<char>(name.size() + 4));
    body += std::string("\x02\xa0", 2);
    body.push_back(static_cast<char>(name.size()));
    body += name + '\x42';
    discharge_ = request(body);
  }

  void declare() {
    while (static_cast<int>(declared_.size()) + declaring_ < kDeclaredAhead && pn_link_credit(coordinator_) > 0) {
      ++declaring_;
      request(std::string("\x00\x53\x31\x45", 4));
    }
  }

  pn_delivery_t* request(const std::string& described) {
    pn_delivery_t* delivery = begin_delivery(coordinator_);
    std::string message = std::string("\x00\x53\x77", 3) + described;
    pn_link_send(coordinator_, message.data(), message.size());
    pn_link_advance(coordinator_);
    return delivery;
  }

  pn_delivery_t* begin_delivery(pn_link_t* link) {
    ++tag_;
    return pn_delivery(link, pn_dtag(reinterpret_cast<const char*>(&tag_), sizeof tag_));
  }

  const Order order_;
  long sent_ = 0, done_ = 0, unsettled_ = 0, posted_ = 0;
  int declaring_ = 0, source_ = 0;
  uint64_t tag_ = 0;
  int socket_ = -1;
  bool is_working_ = false, is_closing_ = false;
  int64_t start_ = 0;
  std::string encoded_;
  pn_connection_driver_t driver_{};
  pn_session_t* session_ = nullptr;
  pn_link_t* coordinator_ = nullptr;
  pn_delivery_t* discharge_ = nullptr;
  std::vector<pn_link_t*> senders_, receivers_;
  std::deque<std::string> declared_;
  std::vector<std::deque<pn_delivery_t*>> held_;
  std::vector<char> buffer_ = std::vector<char>(1 << 21);
  Counts* counts_ = nullptr;
};

Workload workload_named(const std::string& name) {
  if (name == "publish") return Workload::kPublish;
  if (name == "move") return Workload::kMove;
  if (name == "stream") return Workload::kStream;
  if (name == "consume") return Workload::kConsume;
  throw std::runtime_error("no workload " + name);
}

void fill(const Order& order, const std::string& queue, long messages) {
  Order filling = order;
  filling.workload = Workload::kStream;
  filling.queues = {queue};
  filling.limit = messages;
  Counts nobody;
  Client(filling).run(&nobody);
}

struct Worker {
  std::unique_ptr<Client> client;
  Counts counts;
  std::thread thread;
};

void work(const Order& order, Worker& worker, double warm_seconds, double seconds, std::promise<void> ready,
          std::shared_future<int64_t> go) {
  try {
    if (order.workload == Workload::kMove)
      for (const std::string& queue : order.queues) fill(order, queue, kMoved);
    if (order.workload == Workload::kConsume) fill(order, order.queues[0], order.limit);
    worker.client = std::make_unique<Client>(order);
    ready.set_value();
    worker.counts.first = go.get() + static_cast<int64_t>(1e6 * warm_seconds);
    worker.counts.last = worker.counts.first + static_cast<int64_t>(1e6 * seconds);
    worker.client->run(&worker.counts);
    if (order.workload == Workload::kConsume) {
      worker.counts.last = now_us();
      worker.counts.operations = worker.counts.messages = order.limit;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "amqp_client: %s\n", error.what());
    std::_Exit(1);
  }
}

void report(const std::vector<std::unique_ptr<Worker>>& workers) {
  uint64_t operations = 0, messages = 0;
  int64_t first = workers[0]->counts.first, last = workers[0]->counts.last;
  for (const auto& worker : workers) {
    operations += worker->counts.operations;
    messages += worker->counts.messages;
    first = std::min(first, worker->counts.first);
    last = std::max(last, worker->counts.last);
  }
  std::printf("{\"operations\": %llu, \"messages\": %llu, \"seconds\": %.6f, \"latencies_us\": [",
              static_cast<unsigned long long>(operations), static_cast<unsigned long long>(messages), (last - first) / 1e6);
  const char* separator = "";
  for (const auto& worker : workers)
    for (uint32_t latency : worker->counts.latencies_us) std::printf("%s%u", separator, latency), separator = ",";
  std::printf("]}\n");
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 9) {
    std::fprintf(stderr, "usage: amqp_client PORT WORKLOAD PREFIX CONNECTIONS SIZE BODY_BYTES WARM_SECONDS SECONDS\n");
    return 2;
  }
  Order order{std::atoi(arguments[1]), workload_named(arguments[2]), {}, std::atol(arguments[5]), std::atol(arguments[6])};
  if (order.workload == Workload::kConsume) order.limit = order.size;
  int connections = std::atoi(arguments[4]);
  std::promise<int64_t> go;
  std::shared_future<int64_t> going = go.get_future().share();
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::future<void>> ready;
  for (int number = 0; number < connections; ++number) {
    Order own = order;
    std::string queue = std::string(arguments[3]) + "-" + std::to_string(number);
    own.queues = order.workload == Workload::kMove ? std::vector<std::string>{queue + "-a", queue + "-b"}
                                                   : std::vector<std::string>{queue};
    workers.push_back(std::make_unique<Worker>());
    std::promise<void> promise;
    ready.push_back(promise.get_future());
    workers.back()->thread = std::thread(work, own, std::ref(*workers.back()), std::atof(arguments[7]), std::atof(arguments[8]),
                                         std::move(promise), going);
  }
  for (auto& one : ready) one.wait();
  std::printf("ready\n");
  std::fflush(stdout);
  char line[16];
  if (!std::fgets(line, sizeof line, stdin)) return 1;
  go.set_value(now_us());
  for (auto& worker : workers) worker->thread.join();
  report(workers);
  while (std::fgets(line, sizeof line, stdin)) {
  }
  return 0;
}
