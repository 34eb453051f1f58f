// Runs one launch: reads a request from standard input, writes all its buffers, as the kernel leaves them, to standard
// output. A request is lines `kernel NAME`, `grid X Y Z`, `block N`, `shared BYTES`, then one for each argument (`int V`,
// `long V`, `float BITS`, `null`, `buffer BYTES`), `data`, and the bytes of the buffers. With any argument it lists the
// kernels instead.
#include "emulator.h"

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>
#include <tuple>
#include <utility>

uint3 threadIdx, blockIdx, blockDim, gridDim;
float* emulated_shared;

std::vector<Entry>& entries() {
    static std::vector<Entry> all;
    return all;
}

namespace {

constexpr size_t STACK = 256 << 10;
constexpr int WARP = 32;

enum class State { Ready, AtBlock, AtWarp, Done };

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    State state;
};

std::vector<Fiber> fibers;
std::vector<uint32_t> given;
// What each thread gave to a product of tiles: `a`, then `b`.
struct Words {
    uint32_t at[6];
};
std::vector<Words> tiles;
ucontext_t scheduler;
int running;
const Kernel* kernel;

[[noreturn]] void die(const std::string& why) {
    std::cerr << "emulated kernel: " << why << "\n";
    exit(1);
}

void wait(State state) {
    Fiber& me = fibers[running];
    me.state = state;
    swapcontext(&me.context, &scheduler);
}

void start() {
    (*kernel)();
    fibers[running].state = State::Done;
}

// Lets those go on of which all that are left wait for the same thing; whether there were any.
bool release(int first, int last, State state) {
    bool some = false;
    for (int i = first; i < last; i++) {
        if (fibers[i].state != state && fibers[i].state != State::Done) return false;
        some |= fibers[i].state == state;
    }
    for (int i = first; i < last; i++) {
        if (fibers[i].state == state) fibers[i].state = State::Ready;
    }
    return some;
}

void run_block(int threads, bool backwards) {
    for (auto& f : fibers) {
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.get();
        f.context.uc_stack.ss_size = STACK;
        f.context.uc_link = &scheduler;
        f.state = State::Ready;
        makecontext(&f.context, start, 0);
    }
    const int warps = threads / WARP;
    do {
        // A warp goes on as long as it can before another is looked at: what a missing barrier lets happen, happens.
        for (int w = 0; w < warps; w++) {
            const int first = (backwards ? warps - 1 - w : w) * WARP;
            do {
                for (int i = 0; i < WARP; i++) {
                    running = first + (backwards ? WARP - 1 - i : i);
                    if (fibers[running].state != State::Ready) continue;
                    threadIdx = {(unsigned)running, 0, 0};
                    swapcontext(&scheduler, &fibers[running].context);
                }
            } while (release(first, first + WARP, State::AtWarp));
        }
    } while (release(0, threads, State::AtBlock));
    for (auto& f : fibers) {
        if (f.state != State::Done) die("a barrier that not all threads reach");
    }
}

struct Request {
    std::string name;
    uint3 grid{1, 1, 1};
    unsigned block = 1, shared = 0;
    std::vector<Argument> arguments;
    std::vector<std::pair<void*, size_t>> buffers;
};

Request read() {
    Request r;
    std::string line;
    while (std::getline(std::cin, line) && line != "data") {
        std::istringstream in(line);
        std::string word;
        in >> word;
        if (word == "kernel") in >> r.name;
        else if (word == "grid") in >> r.grid.x >> r.grid.y >> r.grid.z;
        else if (word == "block") in >> r.block;
        else if (word == "shared") in >> r.shared;
        else {
            Argument a{};
            int64_t n = 0;
            if (word != "null") in >> n;
            a.integer = n;
            a.kind = word == "int" ? 'i' : word == "long" ? 'l' : word == "float" ? 'f' : 'p';
            a.real = __uint_as_float((uint32_t)n);
            if (word == "buffer") {
                // Of its exact size, so that a sanitizer sees what is beyond.
                if (posix_memalign(&a.pointer, 256, n ? n : 1)) die("no memory");
                r.buffers.push_back({a.pointer, (size_t)n});
            }
            r.arguments.push_back(a);
        }
        if (!in) die("a line that can't be read: " + line);
    }
    for (auto& [at, n] : r.buffers) {
        if (!std::cin.read((char*)at, (std::streamsize)n)) die("the data end early");
    }
    return r;
}

}  // namespace

void __syncthreads() { wait(State::AtBlock); }

uint32_t exchange(uint32_t mine, int step) {
    const int me = running, other = me / WARP * WARP + (me % WARP ^ step);
    given[me] = mine;
    wait(State::AtWarp);
    if (fibers[other].state == State::Done) die("a shuffle with a lane that has ended");
    const uint32_t theirs = given[other];
    wait(State::AtWarp);
    return theirs;
}

void multiply_add(int (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    const int me = running, warp = me / WARP * WARP, g = me % WARP / 4, t = me % 4;
    tiles[me] = {{a[0], a[1], a[2], a[3], b[0], b[1]}};
    wait(State::AtWarp);
    for (int i = 0; i < 4; i++) {
        const int row = g + i / 2 * 8, column = 2 * t + i % 2;
        for (int k = 0; k < 32; k++) {
            const int lane = k % 16 / 4, shift = k % 4 * 8;
            const uint32_t left = tiles[warp + 4 * (row % 8) + lane].at[row / 8 + k / 16 * 2];
            const uint32_t right = tiles[warp + 4 * column + lane].at[4 + k / 16];
            sums[i] += (int)(int8_t)(left >> shift) * (int)(int8_t)(right >> shift);
        }
    }
    wait(State::AtWarp);
}

int main(int count, char**) {
    if (count > 1) {
        for (auto& e : entries()) std::cout << e.name << "\n";
        return 0;
    }
    Request r = read();
    const char* order = getenv("EMULATED_ORDER");
    const bool backwards = order && std::string(order) == "backwards";
    Kernel bound;
    for (auto& e : entries()) {
        if (e.name != r.name) continue;
        try {
            bound = e.bind(r.arguments);
        } catch (const std::string& why) {
            die(r.name + " takes " + why);
        }
    }
    if (!bound) die("no kernel " + r.name);
    if (r.block % WARP || r.block > 1024 || r.shared > 48 << 10) die("no such block: " + std::to_string(r.block));
    kernel = &bound;
    fibers = std::vector<Fiber>(r.block);
    for (auto& f : fibers) f.stack.reset(new char[STACK]);
    given.resize(r.block);
    tiles.resize(r.block);
    blockDim = {r.block, 1, 1};
    gridDim = r.grid;
    for (unsigned z = 0; z < r.grid.z; z++) {
        for (unsigned y = 0; y < r.grid.y; y++) {
            for (unsigned x = 0; x < r.grid.x; x++) {
                blockIdx = {x, y, z};
                // What a block finds in shared memory is noise.
                void* shared = nullptr;
                if (posix_memalign(&shared, 16, r.shared ? r.shared : 1)) die("no memory");
                memset(shared, 0xFF, r.shared);
                emulated_shared = (float*)shared;
                run_block((int)r.block, backwards);
                free(shared);
            }
        }
    }
    for (auto& [at, n] : r.buffers) std::cout.write((const char*)at, (std::streamsize)n);
    return std::cout.flush() ? 0 : 1;
}
