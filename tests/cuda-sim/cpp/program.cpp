// Reading a kernel source: its entry points, and its text as C++ that the machine's compiler takes.
#include "sim.h"
#include <cctype>
#include <cstring>
#include <sys/uio.h>
#include <unistd.h>

namespace sim {

std::string hash_of(const std::string& s) {
    uint64_t a = 0xcbf29ce484222325ull, b = 0x84222325cbf29ce4ull;
    for (unsigned char c : s) {
        a = (a ^ c) * 0x100000001b3ull;
        b = (b ^ c ^ (a >> 56)) * 0x100000001b3ull;
    }
    char out[40];
    snprintf(out, sizeof out, "%016llx%016llx", (unsigned long long)a, (unsigned long long)b);
    return out;
}

// The text with comments, and what strings hold, as spaces: same length, same lines.
static std::string blanked(const std::string& s) {
    std::string out = s;
    for (size_t i = 0; i < s.size();) {
        if (s.compare(i, 2, "//") == 0) {
            while (i < s.size() && s[i] != '\n') out[i++] = ' ';
        } else if (s.compare(i, 2, "/*") == 0) {
            size_t end = s.find("*/", i + 2);
            end = end == std::string::npos ? s.size() : end + 2;
            for (; i < end; i++)
                if (s[i] != '\n') out[i] = ' ';
        } else if (s[i] == '"') {
            size_t end = i + 1;
            while (end < s.size() && s[end] != '"' && s[end] != '\n') end += s[end] == '\\' ? 2 : 1;
            bool linkage = end == i + 2 && s[i + 1] == 'C';
            for (i++; i < end && i < s.size(); i++)
                if (!linkage) out[i] = ' ';
            i++;
        } else if (s[i] == '\'' && i + 2 < s.size() && !(i && isalnum((unsigned char)s[i - 1]))) {
            size_t end = s.find('\'', s[i + 1] == '\\' ? i + 3 : i + 2);
            end = end == std::string::npos ? s.size() : end;
            for (i++; i < end; i++) out[i] = ' ';
            i++;
        } else {
            i++;
        }
    }
    return out;
}

static bool word_char(char c) { return isalnum((unsigned char)c) || c == '_'; }
// The next occurrence of a whole word.
static size_t find_word(const std::string& s, const char* word, size_t from = 0) {
    size_t n = strlen(word);
    while ((from = s.find(word, from)) != std::string::npos) {
        if (!(from && word_char(s[from - 1])) && !(from + n < s.size() && word_char(s[from + n]))) return from;
        from += n;
    }
    return from;
}
static size_t skip_space(const std::string& s, size_t i) {
    while (i < s.size() && isspace((unsigned char)s[i])) i++;
    return i;
}
static size_t skip_parens(const std::string& s, size_t i) {  // at '('; past its ')'
    int depth = 0;
    for (; i < s.size(); i++) {
        if (s[i] == '(') depth++;
        if (s[i] == ')' && --depth == 0) return i + 1;
    }
    return i;
}

struct Entry {
    std::string name, bounds;
};

static std::vector<Entry> entries(const std::string& text) {
    std::vector<Entry> out;
    bool whole = false;  // everything is extern "C"
    for (size_t at = 0; (at = find_word(text, "extern", at)) != std::string::npos; at++) {
        size_t next = skip_space(text, at + 6);
        if (text.compare(next, 3, "\"C\"") == 0 && text[skip_space(text, next + 3)] == '{') whole = true;
    }
    for (size_t at = 0; (at = find_word(text, "__global__", at)) != std::string::npos; at++) {
        size_t before = at;
        while (before && isspace((unsigned char)text[before - 1])) before--;
        bool c_linkage = whole || (before >= 3 && text.compare(before - 3, 3, "\"C\"") == 0);
        Entry e;
        size_t i = at + 10;
        while (i < text.size()) {
            i = skip_space(text, i);
            if (i < text.size() && word_char(text[i])) {
                size_t start = i;
                while (i < text.size() && word_char(text[i])) i++;
                std::string word = text.substr(start, i - start);
                if (word == "__launch_bounds__") {
                    size_t open = skip_space(text, i);
                    i = skip_parens(text, open);
                    std::string inner = text.substr(open + 1, i - open - 2);
                    int depth = 0;
                    size_t comma = 0;
                    while (comma < inner.size() && !(inner[comma] == ',' && !depth)) {
                        depth += inner[comma] == '(' ? 1 : inner[comma] == ')' ? -1 : 0;
                        comma++;
                    }
                    e.bounds = inner.substr(0, comma);
                } else {
                    e.name = word;
                }
            } else if (i < text.size() && text[i] == '(') {
                i = skip_parens(text, i);
                break;
            } else {
                i++;
            }
        }
        // A declaration alone is no entry point; a name without C linkage is mangled, so nobody finds it by name.
        if (text[skip_space(text, i)] != '{' || !c_linkage || e.name.empty()) continue;
        bool known = false;
        for (auto& other : out) known |= other.name == e.name;
        if (!known) out.push_back(e);
    }
    return out;
}

bool read_program(Program& p, std::string& log) {
    std::string text = blanked(p.source);
    size_t include = text.find("#include");
    if (include != std::string::npos) {
        log = p.name + ": error: NVRTC has no headers of its own: #include is not supported by the simulated compiler\n";
        return false;
    }
    if (find_word(text, "asm") != std::string::npos && text.find("STEPGRAPH_SIM") == std::string::npos) {
        log = p.name + ": error: inline asm is not simulated: guard it with #ifndef STEPGRAPH_SIM\n";
        return false;
    }
    for (auto& e : entries(text)) p.kernels.push_back(e.name);
    for (const char* sign : {"__sync", "__shfl", "__ballot", "__any_sync", "__all_sync", "__reduce_", "__match_"})
        if (text.find(sign) != std::string::npos) p.fibers = true;
    std::string key = p.name + '\n' + (p.fmad ? "fmad\n" : "\n");
    for (auto& d : p.defines) key += d + '\n';
    p.hash = hash_of(key + p.source);
    return true;
}

// `extern __shared__ T name[];` becomes a pointer to the dynamic shared memory.
static std::string without_dynamic_shared(std::string source) {
    std::string text = blanked(source);
    std::string out;
    size_t done = 0, at = 0;
    int depth = 0;
    size_t counted = 0;
    while ((at = find_word(text, "extern", at)) != std::string::npos) {
        size_t i = skip_space(text, at + 6);
        if (text.compare(i, 10, "__shared__") != 0) {
            at++;
            continue;
        }
        for (; counted < at; counted++) depth += text[counted] == '{' ? 1 : text[counted] == '}' ? -1 : 0;
        size_t semicolon = text.find(';', i), open = text.find('[', i);
        if (semicolon == std::string::npos || open == std::string::npos || open > semicolon) {
            at++;
            continue;
        }
        size_t name_end = open;
        while (name_end && isspace((unsigned char)text[name_end - 1])) name_end--;
        size_t name_start = name_end;
        while (name_start && word_char(text[name_start - 1])) name_start--;
        std::string type = text.substr(i + 10, name_start - i - 10);
        for (const char* word : {"__align__", "alignas", "__attribute__"}) {
            size_t a;
            while ((a = find_word(type, word)) != std::string::npos)
                type.erase(a, skip_parens(type, type.find('(', a)) - a);
        }
        std::string name = text.substr(name_start, name_end - name_start);
        out += source.substr(done, at - done);
        if (depth > 0) out += type + "* const " + name + " = (" + type + "*)cusim_dyn;";
        else out += "static cusim_dynamic<" + type + "> " + name + ";";
        done = semicolon + 1;
        at = done;
    }
    return out + source.substr(done);
}

static std::string with_cxx_linkage(std::string source) {
    std::string text = blanked(source), out;
    size_t done = 0;
    for (size_t at = 0; (at = find_word(text, "extern", at)) != std::string::npos; at++) {
        size_t next = skip_space(text, at + 6);
        if (text.compare(next, 3, "\"C\"") != 0) continue;
        out += source.substr(done, next - done) + "\"C++\"";
        done = next + 3;
    }
    return out + source.substr(done);
}

// A part of one translation unit: its own namespace, its own shared memory section, and no macro left behind.
std::string rewritten(const Program& p, unsigned index) {
    std::string n = std::to_string(index), out, undo;
    for (auto& d : p.defines) {
        size_t eq = d.find('=');
        out += "#define " + (eq == std::string::npos ? d + " 1" : d.substr(0, eq) + " " + d.substr(eq + 1)) + "\n";
        undo += "#undef " + d.substr(0, std::min(eq, d.find('('))) + "\n";
    }
    out += "#undef __shared__\n#define __shared__ static __attribute__((section(\"cusim_sh_" + n + "\")))\n";
    for (const char* side : {"start", "stop"})
        out += std::string("extern \"C\" unsigned char __") + side + "_cusim_sh_" + n +
               "[] __attribute__((weak, visibility(\"hidden\")));\n";
    out += "namespace { namespace cusim_k" + n + " {\n#line 1 \"" + p.name + "\"\n";
    out += with_cxx_linkage(without_dynamic_shared(p.source)) + "\n";
    std::string text = blanked(p.source);
    out += "static const CusimKernel cusim_table[] = {\n";
    for (auto& e : entries(text))
        out += "CUSIM_KERNEL(" + e.name + ", (" + (e.bounds.empty() ? "0" : e.bounds) + "), __start_cusim_sh_" + n +
               ", __stop_cusim_sh_" + n + "),\n";
    out += "{0, 0, 0, 0, 0, 0, 0, 0}};\n}}\n";
    out += "extern \"C\" __attribute__((visibility(\"default\"))) const CusimKernel* const cusim_table_" + n +
           " = cusim_k" + n + "::cusim_table;\n";
    for (size_t at = 0; (at = text.find('#', at)) != std::string::npos; at++) {
        size_t i = at + 1;
        while (i < text.size() && (text[i] == ' ' || text[i] == '\t')) i++;
        if (text.compare(i, 6, "define") != 0) continue;
        i = skip_space(text, i + 6);
        size_t start = i;
        while (i < text.size() && word_char(text[i])) i++;
        undo += "#undef " + text.substr(start, i - start) + "\n";
    }
    return out + undo;
}

// ---- images: a text that holds all that compiling again takes, with its length and a checksum ----

constexpr size_t HEADER = 96;

std::string image_of(const Program& p, bool cubin) {
    auto& s = settings();
    std::string body = "nvrtc " + std::to_string(s.nvrtc_major * 1000 + s.nvrtc_minor * 10) + "\narch " + p.arch +
                       "\nfmad " + (p.fmad ? "1" : "0") + "\nname " + p.name + "\n";
    for (auto& d : p.defines) body += "define " + d + "\n";
    body += "source\n" + p.source;
    char header[HEADER + 1];
    snprintf(header, sizeof header, "CUSIM1 %-5s %010zu %s", cubin ? "cubin" : "ptx", body.size(),
             hash_of(body).c_str());
    std::string out = header;
    out.resize(HEADER - 1, ' ');
    return out + "\n" + body;
}

static std::string peek(const void* at, size_t bytes) {
    std::string out(bytes, '\0');
    iovec to{&out[0], bytes}, from{(void*)at, bytes};
    ssize_t got = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
    if (got < 0) {
        // Not permitted here: trust what begins as an image does.
        if (strncmp((const char*)at, "CUSIM1 ", 7) != 0) return "";
        memcpy(&out[0], at, bytes);
        return out;
    }
    out.resize(got);
    return out;
}

std::shared_ptr<Program> program_of(const void* image, Code& code) {
    code = INVALID_IMAGE;
    std::string header = peek(image, HEADER);
    if (header.size() < HEADER || header.compare(0, 7, "CUSIM1 ") != 0) {
        diagnose("the module's image is not one of the simulated compiler");
        return nullptr;
    }
    bool cubin = header.compare(7, 5, "cubin") == 0;
    size_t bytes = strtoull(header.substr(13, 10).c_str(), nullptr, 10);
    if (bytes > (64u << 20)) return nullptr;
    std::string body = peek((const char*)image + HEADER, bytes);
    if (body.size() != bytes || hash_of(body) != header.substr(24, 32)) {
        diagnose("the module's image is damaged");
        return nullptr;
    }
    auto p = std::make_shared<Program>();
    int version = 0;
    size_t i = 0;
    while (i < body.size()) {
        size_t end = body.find('\n', i);
        if (end == std::string::npos) return nullptr;
        std::string line = body.substr(i, end - i);
        i = end + 1;
        if (line == "source") break;
        std::string key = line.substr(0, line.find(' ')), value = line.substr(line.find(' ') + 1);
        if (key == "nvrtc") version = atoi(value.c_str());
        if (key == "arch") p->arch = value;
        if (key == "fmad") p->fmad = value == "1";
        if (key == "name") p->name = value;
        if (key == "define") p->defines.push_back(value);
    }
    p->source = body.substr(i);
    auto& s = settings();
    int digits = atoi(p->arch.c_str() + p->arch.find('_') + 1), cc = s.cc_major * 10 + s.cc_minor;
    if (cubin) {
        if (digits / 10 != s.cc_major || digits > cc) return code = NO_BINARY_FOR_GPU, nullptr;
        if (version / 1000 > s.driver_version / 1000) return nullptr;
    } else {
        if (digits > cc) return code = INVALID_PTX, nullptr;
        if (version > s.driver_version) return code = UNSUPPORTED_PTX_VERSION, nullptr;
    }
    std::string log;
    if (!read_program(*p, log)) return nullptr;
    code = OK;
    return p;
}

}  // namespace sim
