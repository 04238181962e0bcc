# SPDX-License-Identifier: Apache-2.0
#
# make            the library (shared and static), tern-run, tern-info, tern-trace, tern-bench, the examples
# make demo       the main job: real routing through eight ranks, checked bit for bit
# make check      builds and runs every test; ends with "N passed, M failed"
# make help       targets and variables
#
# Sources are found by folder: a new file needs no line here. A variant (release, trace, asan, tsan) has a folder of
# its own under build/. Kernels are compiled twice from one source: by $(CC) for the cpu machine and, where
# CUDA is found, by nvcc for the cuda machine.

.SUFFIXES:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := all

VARIANT ?= release
CUDA    ?= auto
WERROR  ?= 1
V       ?= 0
PREFIX  ?= /usr/local
DESTDIR ?=
ifeq ($(origin CC),default)
CC := gcc
# A clock of gcc 12's ThreadSanitizer has a word for every thread, and the cpu machine has thousands: clang's, of a
# fixed size, takes a tenth of the time.
ifeq ($(VARIANT),tsan)
CC := $(shell printf 'int main(void) { return 0; }\n' | \
    clang -fsanitize=thread -x c - -o /dev/null > /dev/null 2>&1 && echo clang || echo gcc)
endif
endif
ifeq ($(origin CXX),default)
CXX := g++
endif

B := build/$(VARIANT)
OBJ := $(B)/obj

ifeq ($(V),0)
Q := @
say = @printf '  %-5s %s\n' $(1) $(2)
else
Q :=
say =
endif

VERSION_PART = $(shell sed -n 's/^\#define TERN_VERSION_$(1) *//p' include/tern/tern.h)
MAJOR   := $(call VERSION_PART,MAJOR)
VERSION := $(MAJOR).$(call VERSION_PART,MINOR).$(call VERSION_PART,PATCH)
COMMIT  := $(shell git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)

# ---- CUDA: the compiler, its headers, the static runtime, and a C++ host compiler for nvcc ----------------

CUDA_STATE := off (CUDA=0)
HAVE_CUDA :=
ifneq ($(CUDA),0)
NVCC ?= $(shell command -v nvcc || command -v /usr/local/cuda/bin/nvcc)
CUDA_STATE := no (no nvcc on PATH or in /usr/local/cuda)
ifneq ($(NVCC),)
ifeq ($(shell command -v $(NVCC)),)
CUDA_STATE := no (there is no program $(NVCC))
else
CUDA_ROOT := $(patsubst %/bin/,%,$(dir $(realpath $(shell command -v $(NVCC)))))
CUDA_INCLUDE := $(patsubst %/cuda_runtime_api.h,%,$(firstword \
    $(wildcard $(CUDA_ROOT)/include/cuda_runtime_api.h $(CUDA_ROOT)/targets/*/include/cuda_runtime_api.h)))
CUDART := $(firstword $(wildcard $(CUDA_ROOT)/lib64/libcudart_static.a $(CUDA_ROOT)/lib/libcudart_static.a \
    $(CUDA_ROOT)/targets/*/lib/libcudart_static.a))
ifeq ($(and $(CUDA_INCLUDE),$(CUDART)),)
CUDA_STATE := no ($(NVCC) has no headers or no libcudart_static.a beside it)
else ifeq ($(shell command -v $(CXX)),)
CUDA_STATE := no ($(NVCC) needs a C++ compiler, and there is no $(CXX))
else
HAVE_CUDA := 1
CUDA_STATE := $(shell $(NVCC) --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p') ($(NVCC))
endif
endif
endif
endif
ifeq ($(CUDA)$(HAVE_CUDA),1)
$(error CUDA=1 was asked for: $(CUDA_STATE))
endif

# ---- libfabric: its headers alone; the library is looked for when a program asks for it -------------------

FABRIC ?= auto
FABRIC_STATE := off (FABRIC=0)
HAVE_FABRIC :=
ifneq ($(FABRIC),0)
FABRIC_INCLUDE ?= $(firstword $(wildcard /usr/include/rdma/fabric.h /usr/local/include/rdma/fabric.h \
    /opt/amazon/efa/include/rdma/fabric.h))
ifeq ($(FABRIC_INCLUDE),)
FABRIC_STATE := no (no rdma/fabric.h: Debian has it in libfabric-dev)
else
HAVE_FABRIC := 1
FABRIC_CFLAGS := $(if $(filter /usr/include/%,$(FABRIC_INCLUDE)),,-isystem $(FABRIC_INCLUDE:%/rdma/fabric.h=%))
FABRIC_STATE := headers of $(FABRIC_INCLUDE)
endif
endif
ifeq ($(FABRIC)$(HAVE_FABRIC),1)
$(error FABRIC=1 was asked for: $(FABRIC_STATE))
endif

# ---- RDMA: the headers of rdma-core; its libraries are looked for at run time --------------------------------

VERBS ?= auto
VERBS_STATE := off (VERBS=0)
HAVE_VERBS :=
ifneq ($(VERBS),0)
VERBS_STATE := no (no infiniband/mlx5dv.h: libibverbs-dev)
ifeq ($(shell printf '\043include <infiniband/mlx5dv.h>\n' | $(CC) $(CPPFLAGS) -E - > /dev/null 2>&1 && echo 1),1)
HAVE_VERBS := 1
VERBS_STATE := yes
endif
endif
ifeq ($(VERBS)$(HAVE_VERBS),1)
$(error VERBS=1 was asked for: $(VERBS_STATE))
endif

# ---- Sources -----------------------------------------------------------------------------------------------

# What tern_device.h includes, installed below tern/dialect.
DIALECT     := $(addprefix src/simt/,simt.h ptx.h fiber.h thread.h) \
    $(addprefix src/net/,amo.h group.h p2p.h net_wait.h wait.h target.h ring.h ring_route.h mlx5_format.h \
    mlx5_atomic.h mlx5_wqe.h mlx5_cqe.h queue.h queue_core.h queue_build.h queue_ops.h queue_route.h route.h \
    barrier.h bulk.h)

ALL_SRC     := $(filter-out src/ref/%,$(wildcard src/*/*.c))
CUDA_SRC    := $(wildcard src/machine/cuda*.c) src/kernels/table_cuda.c
FABRIC_SRC  := $(wildcard src/net/fabric*.c)
VERBS_SRC   := $(wildcard src/net/mlx5_*.c)
LIB_SRC     := $(filter-out $(if $(HAVE_CUDA),src/machine/no_cuda.c,$(CUDA_SRC)) \
    $(if $(HAVE_FABRIC),src/net/no_fabric.c,$(FABRIC_SRC)) $(if $(HAVE_VERBS),src/net/no_mlx5.c,$(VERBS_SRC)),$(ALL_SRC))
KERNELS     := $(filter-out src/kernels/table_%,$(wildcard src/kernels/*.c))
BENCH_KERNELS := $(filter $(addprefix bench/,$(addsuffix .c,$(shell \
    sed -n 's/^ *X.\(\(wire\|drive\)_[a-z_0-9]*\),.*/\1/p' src/kernels/kernels.h))),$(wildcard bench/*.c))
# The executor plays the part of the hardware: ThreadSanitizer is told what it does instead of watching it.
EXECUTOR    := $(wildcard src/simt/*.c) src/machine/cpu.c

TEST_MAIN   := $(wildcard test/*_test.c)
TEST_HELP   := $(filter-out $(TEST_MAIN),$(wildcard test/*.c)) $(wildcard src/ref/*.c)
BENCH_SRC   := $(filter-out $(BENCH_KERNELS),$(wildcard bench/*.c))
# Kernels that only tests run: on the cpu machine, and through nvcc to see that it takes them. That of net_kernel
# runs on GPUs, too.
TEST_KERNEL := $(wildcard test/*_kernel.c)
TOOL_MAIN   := $(wildcard tools/*.c)
# Kernels of an example, for each machine.
EXAMPLE_KERNEL := $(wildcard examples/*_kernel.c)
EXAMPLE_SRC := $(filter-out $(EXAMPLE_KERNEL),$(wildcard examples/*.c))

c_obj  = $(patsubst %.c,$(OBJ)/%.o,$(1))
cu_obj = $(if $(HAVE_CUDA),$(patsubst %.c,$(OBJ)/cuda/%.o,$(1)))

LIB_OBJ   := $(call c_obj,$(LIB_SRC)) $(call cu_obj,$(KERNELS))
WIRE_OBJ  := $(call c_obj,$(BENCH_KERNELS)) $(call cu_obj,$(BENCH_KERNELS))
BENCH_OBJ := $(call c_obj,$(BENCH_SRC)) $(WIRE_OBJ)
HELP_OBJ  := $(call c_obj,$(TEST_HELP))

TOOLS    := $(patsubst tools/%.c,$(B)/bin/%,$(subst _,-,$(TOOL_MAIN)))
BENCH    := $(if $(wildcard bench/main.c),$(B)/bin/tern-bench)
EXAMPLES := $(patsubst examples/%.c,$(B)/examples/%,$(EXAMPLE_SRC))
TESTS    := $(patsubst test/%.c,$(B)/test/%,$(TEST_MAIN))
# These two have targets of their own: check-tsan and check-memcheck.
SCRIPTS  := $(filter-out test/tsan_awake.sh test/memcheck.sh,$(wildcard test/*.sh))
SHARED   := $(B)/libtern.so.$(VERSION)
STATIC   := $(B)/libtern.a
HELP_LIB := $(B)/libhelp.a

# ---- Flags -------------------------------------------------------------------------------------------------

CFLAGS   ?= $(if $(filter asan,$(VARIANT)),-O1,-O2) -g
COMPILER_IS_CLANG := $(findstring clang,$(shell $(CC) --version 2>/dev/null))
WARNINGS := -Wall -Wextra -Wc++-compat -Wvla $(if $(filter 1,$(WERROR)),-Werror) \
    $(if $(COMPILER_IS_CLANG),,-Wjump-misses-init)
# No contraction to fused multiply-add on either machine: sums have the same bits everywhere.
TERN_CFLAGS := -std=gnu11 -fPIC -fvisibility=hidden -ffp-contract=off -Iinclude -Isrc $(WARNINGS) \
    -DTERN_HAVE_VERBS=$(or $(HAVE_VERBS),0)
TERN_LIBS := -lm -lrt -lpthread -ldl
SANITIZE :=

ifeq ($(VARIANT),asan)
# Without points-to analysis, which takes most of the time that gcc needs for an instrumented kernel.
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer \
    $(if $(COMPILER_IS_CLANG),,-fno-tree-pta)
TERN_CFLAGS += -DTERN_ASAN=1
else ifeq ($(VARIANT),tsan)
SANITIZE := -fsanitize=thread
TERN_CFLAGS += -DTERN_THREAD_SANITIZER=1
else ifeq ($(VARIANT),trace)
TERN_CFLAGS += -DTERN_STAMPS=1
else ifneq ($(VARIANT),release)
$(error VARIANT=$(VARIANT): it is release, trace, asan or tsan)
endif

ifdef HAVE_CUDA
CUDA_CFLAGS := -isystem $(CUDA_INCLUDE)
CUDA_LIBS := $(CUDART)
NVCC_ARCH ?= -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \
    -gencode arch=compute_90,code=compute_90
NVCC_FLAGS := -x cu -std=c++17 -O3 -fmad=false -Iinclude -Isrc $(if $(filter trace,$(VARIANT)),-DTERN_STAMPS=1) \
    $(NVCC_ARCH) -ccbin $(CXX) -Xptxas -v \
    $(if $(filter 1,$(WERROR)),-Werror all-warnings) \
    -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-ffp-contract=off
endif

$(call c_obj,$(CUDA_SRC)): EXTRA = $(CUDA_CFLAGS)
$(call c_obj,$(FABRIC_SRC)): EXTRA = $(FABRIC_CFLAGS)
$(OBJ)/bench/about.o: EXTRA = -DTERN_COMMIT='"$(COMMIT)"'
ifeq ($(VARIANT),tsan)
$(call c_obj,$(EXECUTOR)): EXTRA = -fno-sanitize=thread -DTERN_TSAN=1
endif

compile = $(CC) $(TERN_CFLAGS) $(CFLAGS) $(CPPFLAGS) $(SANITIZE) $(EXTRA)
link = $(CC) $(CFLAGS) $(SANITIZE) $(LDFLAGS)

# ---- Rules -------------------------------------------------------------------------------------------------

.PHONY: all lib report check check-programs check-asan check-tsan check-gpu check-memcheck fuzz demo bench install uninstall \
    python wheel clean help format-check FORCE

all: report $(if $(SANITIZE),,lib) $(STATIC) $(TOOLS) $(BENCH) $(EXAMPLES)
lib: $(SHARED) $(B)/libtern.so.$(MAJOR) $(B)/libtern.so $(STATIC)

report:
	@printf 'tern %s (%s): compiler %s, cuda %s, rdma %s, libfabric %s\n' '$(VERSION)' '$(VARIANT)' '$(CC)' \
	    '$(CUDA_STATE)' '$(VERBS_STATE)' '$(FABRIC_STATE)'

# Rewritten only when its content changes: another compiler, flag or list of files rebuilds what it must.
define stamp
$(1): FORCE
	@mkdir -p $$(@D)
	@text='$(subst ','\'',$(2))'; \
	    printf '%s\n' "$$$$text" | cmp -s - $$@ || printf '%s\n' "$$$$text" > $$@
endef
$(eval $(call stamp,$(B)/.compile,$(CC) $(TERN_CFLAGS) $(CFLAGS) $(CPPFLAGS) $(SANITIZE) $(CUDA_CFLAGS)))
$(eval $(call stamp,$(B)/.nvcc,$(NVCC) $(NVCC_FLAGS)))
$(eval $(call stamp,$(B)/.link,$(LDFLAGS) $(CUDA_LIBS) $(LIB_OBJ) $(BENCH_OBJ) $(HELP_OBJ)))
$(eval $(call stamp,$(B)/.commit,$(COMMIT)))

define compile_c
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(compile) -MMD -MP -c $< -o $@
endef

$(OBJ)/%.o: %.c $(B)/.compile
	$(compile_c)

# What ptxas says of registers and spills is kept beside the object, for test/spills.sh.
$(OBJ)/cuda/%.o: %.c $(B)/.nvcc
	$(call say,NVCC,$<)
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@ 2> $(@:.o=.ptxas) || \
	    { cat $(@:.o=.ptxas) >&2; exit 1; }

$(OBJ)/bench/about.o: $(B)/.commit

$(STATIC): $(LIB_OBJ) $(B)/.link
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $(LIB_OBJ)

$(HELP_LIB): $(HELP_OBJ) $(B)/.link
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $(HELP_OBJ)

$(SHARED): $(LIB_OBJ) src/tern.map $(B)/.link
	$(call say,LD,$@)
	$(Q)$(link) -shared -Wl,-soname,libtern.so.$(MAJOR) -Wl,--version-script=src/tern.map -Wl,-z,defs \
	    -Wl,-z,relro,-z,now $(LIB_OBJ) $(CUDA_LIBS) $(TERN_LIBS) -o $@

$(B)/libtern.so.$(MAJOR) $(B)/libtern.so: $(SHARED)
	@ln -sf $(notdir $(SHARED)) $@

# $(call program,objects and archives)
define program
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(link) $(1) $(STATIC) $(CUDA_LIBS) $(TERN_LIBS) -o $@
endef

# A tool's parts, if it has several, are in a folder of its name.
define tool
$(B)/bin/$(subst _,-,$(notdir $(basename $(1)))): $(call c_obj,$(1) $(wildcard $(basename $(1))/*.c)) $(STATIC)
	$$(call program,$(call c_obj,$(1) $(wildcard $(basename $(1))/*.c)))
endef
$(foreach source,$(TOOL_MAIN),$(eval $(call tool,$(source))))

$(B)/bin/tern-bench: $(BENCH_OBJ) $(HELP_LIB) $(STATIC)
	$(call program,$(BENCH_OBJ) $(HELP_LIB))

$(B)/examples/06_put_signal: $(call c_obj,examples/put_signal_kernel.c) $(call cu_obj,examples/put_signal_kernel.c)
$(B)/examples/%: $(OBJ)/examples/%.o $(STATIC)
	$(call program,$(filter %.o,$^))

# Referred to weakly, which brings no member out of an archive.
$(B)/test/net_kernel_test $(B)/test/hosts_test: $(call c_obj,test/net_kernel.c) $(call cu_obj,test/net_kernel.c)
# Kernels with time stamps, in place of the library's.
TRACED := route dispatch_bulk combine_bulk combine_push_bulk ll_dispatch_bulk ll_combine_bulk ll_dispatch_words ll_dispatch_blanks_bulk ll_combine_blanks ll_weights_ahead table_cpu
$(OBJ)/traced/%.o: EXTRA = -DTERN_STAMPS=1
$(OBJ)/traced/%.o: %.c $(B)/.compile
	$(compile_c)
$(B)/test/trace_test: $(TRACED:%=$(OBJ)/traced/src/kernels/%.o) $(B)/bin/tern-trace
$(B)/test/rail_test: $(call c_obj,test/rail_kernel.c) $(call cu_obj,test/rail_kernel.c)
$(B)/test/%: $(OBJ)/test/%.o $(HELP_LIB) $(STATIC)
	$(call program,$(filter %.o,$^) $(HELP_LIB))

.SECONDARY:

# Programs that are wrong on purpose, for test/tsan_awake.sh: real kernels in which all release stores, or one of
# them alone (ready, done, pushed, drained), are relaxed, or the fences before them missing, or in one of them (dispatch, combine of
# low latency) the fence between a stage and its bulk copy, or (across domains) the order of rows that
# leave together, or of a row that is spread and its word; and kernels of simt_test likewise. net_ops has relaxed
# signals, or looks at words without acquiring; rail_kernel likewise, or lacks the fence before bulk copies, or has
# the one of shared memory in its place; queue_kernel ends its turn at a queue by a relaxed store.
ifeq ($(VARIANT),tsan)
AWAKE := $(addprefix $(B)/awake/,ep_relaxed ep_ready ep_done ep_pushed ep_drained ep_no_fence ll_ready ll_done ll_no_fence \
    ll_dispatch_proxy ll_combine_proxy ll_blanks ll_chunk ll_ship ll_message ll_spread ll_gather \
    simt_relaxed simt_no_fence simt_vote simt_early_fence simt_other_proxy net_signal net_acquire queue_turn \
    rail_signal rail_acquire rail_proxy rail_other_proxy ep_forward)
SIMT_OBJ := $(call c_obj,$(wildcard test/simt_test.c))

$(OBJ)/relaxed/%.o: EXTRA = -DTERN_WEAKEN_RELEASE
$(OBJ)/ready/%.o: EXTRA = -DTERN_WEAKEN_READY
$(OBJ)/done/%.o: EXTRA = -DTERN_WEAKEN_DONE
$(OBJ)/pushed/%.o: EXTRA = -DTERN_WEAKEN_PUSHED
$(OBJ)/drained/%.o: EXTRA = -DTERN_WEAKEN_DRAINED
$(OBJ)/signal/%.o: EXTRA = -DTERN_WEAKEN_SIGNAL
$(OBJ)/acquire/%.o: EXTRA = -DTERN_WEAKEN_ACQUIRE
$(OBJ)/turn/%.o: EXTRA = -DTERN_WEAKEN_TURN
$(OBJ)/rail/%.o: EXTRA = -DTERN_WEAKEN_RAIL
$(OBJ)/rail_proxy/%.o: EXTRA = -DTERN_TEST_NO_RAIL_PROXY
$(OBJ)/dispatch_proxy/%.o: EXTRA = -DTERN_TEST_NO_LL_DISPATCH_PROXY
$(OBJ)/combine_proxy/%.o: EXTRA = -DTERN_TEST_NO_LL_COMBINE_PROXY
$(OBJ)/chunk/%.o: EXTRA = -DTERN_TEST_RELAXED_LL_CHUNK -DTERN_TEST_RELAXED_FORWARD
$(OBJ)/spread/%.o: EXTRA = -DTERN_TEST_RELAXED_LL_RAIL
$(OBJ)/no_words/%.o: EXTRA = -DTERN_TEST_NO_LL_WORDS
$(OBJ)/vote/%.o: EXTRA = -DTERN_TEST_VOTE_ONLY
$(OBJ)/other_proxy/%.o: EXTRA = -DTERN_TEST_OTHER_PROXY_FENCE
$(OBJ)/early_fence/%.o: EXTRA = -DTERN_TEST_EARLY_FENCE
$(OBJ)/no_fence/%.o: EXTRA = -DTERN_TEST_NO_PROXY_FENCE -DTERN_TEST_NO_SYSTEM_FENCE

# Kernels that ep_random_test and ep_ll_random_test run, and what of those moves tokens. Few tokens are what shows
# that entry words order something, as other words do so too, so no rows go in words (kernels/ll_in_words.h) there.
EP_KERNELS := $(filter-out %_inter_plain.c %_inter_bulk.c %_inter_wide_bulk.c,$(wildcard src/kernels/route.c \
    src/kernels/enter.c src/kernels/copy_rows.c src/kernels/dispatch_*.c src/kernels/combine_*.c))
LL_KERNELS := $(foreach name,ll_dispatch ll_combine ll_combine_fp8 ll_combine_log10,\
    $(patsubst %,src/kernels/$(name)_%.c,plain bulk))

# $(call wrong,name): objects of that name; $(call wrong_ep,name) and $(call wrong_ll,name): ep_random_test and
# ep_ll_random_test with kernels of that name.
define wrong
$(OBJ)/$(1)/%.o: %.c $(B)/.compile
	$$(compile_c)
endef
define wrong_ep
$(B)/awake/ep_$(1): $(call c_obj,$(wildcard test/ep_random_test.c)) \
    $(patsubst %.c,$(OBJ)/$(1)/%.o,$(EP_KERNELS)) $(HELP_LIB) $(STATIC)
	$$(call program,$$(filter %.o,$$^) $(HELP_LIB))
endef
define wrong_ll
$(B)/awake/ll_$(1): $(call c_obj,$(wildcard test/ep_ll_random_test.c)) $(OBJ)/no_words/src/ep/layout_ll.o \
    $(patsubst %.c,$(OBJ)/$(1)/%.o,$(LL_KERNELS)) $(HELP_LIB) $(STATIC)
	$$(call program,$$(filter %.o,$$^) $(HELP_LIB))
endef
define wrong_net
$(B)/awake/net_$(1): $(call c_obj,$(wildcard test/net_order_test.c)) $(OBJ)/$(1)/src/kernels/net_ops.o $(HELP_LIB) $(STATIC)
	$$(call program,$$(filter %.o,$$^) $(HELP_LIB))
endef
# $(call wrong_rail,program,objects of that name)
define wrong_rail
$(B)/awake/rail_$(1): $(call c_obj,$(wildcard test/rail_test.c)) $(OBJ)/$(2)/test/rail_kernel.o $(HELP_LIB) $(STATIC)
	$$(call program,$$(filter %.o,$$^) $(HELP_LIB))
endef
$(foreach name,no_words relaxed ready done pushed drained no_fence dispatch_proxy combine_proxy chunk spread signal acquire turn rail rail_proxy vote early_fence other_proxy,$(eval $(call wrong,$(name))))
$(eval $(call wrong_rail,signal,signal))
$(eval $(call wrong_rail,acquire,rail))
$(eval $(call wrong_rail,proxy,rail_proxy))
$(eval $(call wrong_rail,other_proxy,other_proxy))
$(B)/awake/queue_turn: $(call c_obj,$(wildcard test/queue_test.c)) $(OBJ)/turn/test/queue_kernel.o $(HELP_LIB) $(STATIC)
	$(call program,$(filter %.o,$^) $(HELP_LIB))
$(foreach name,signal acquire,$(eval $(call wrong_net,$(name))))
$(foreach name,relaxed ready done pushed drained no_fence,$(eval $(call wrong_ep,$(name))))
$(foreach name,ready done no_fence dispatch_proxy combine_proxy,$(eval $(call wrong_ll,$(name))))
# Rows over blanks, which go from their stages by copies without the fence.
$(B)/awake/ll_blanks: $(call c_obj,$(wildcard test/ep_ll_random_test.c)) \
    $(OBJ)/dispatch_proxy/src/kernels/ll_dispatch_blanks_bulk.o $(HELP_LIB) $(STATIC)
	$(call program,$(filter %.o,$^) $(HELP_LIB))
$(B)/awake/ll_chunk: $(call c_obj,$(wildcard test/ep_ll_inter_test.c)) \
    $(patsubst %,$(OBJ)/chunk/src/kernels/ll_dispatch_inter_%.o,plain bulk) $(HELP_LIB) $(STATIC)
	$(call program,$(filter %.o,$^) $(HELP_LIB))
$(B)/awake/ep_forward: $(call c_obj,$(wildcard test/ep_inter_test.c)) \
    $(patsubst %,$(OBJ)/chunk/src/kernels/dispatch_inter_%.o,plain bulk) $(HELP_LIB) $(STATIC)
	$(call program,$(filter %.o,$^) $(HELP_LIB))
$(B)/awake/ll_ship: $(call c_obj,$(wildcard test/ep_ll_inter_test.c)) \
    $(foreach name,ll_combine ll_combine_fp8 ll_combine_log10,$(patsubst %,$(OBJ)/chunk/src/kernels/$(name)_inter_%.o,plain bulk)) \
    $(HELP_LIB) $(STATIC)
	$(call program,$(filter %.o,$^) $(HELP_LIB))
# $(call wrong_ll_rail,program,objects of that name,kernels)
define wrong_ll_rail
$(B)/awake/ll_$(1): $(call c_obj,$(wildcard test/ep_ll_rail_test.c)) \
    $(foreach name,$(3),$(patsubst %,$(OBJ)/$(2)/src/kernels/$(name)_rail_%.o,plain bulk)) $(HELP_LIB) $(STATIC)
	$$(call program,$$(filter %.o,$$^) $(HELP_LIB))
endef
$(eval $(call wrong_ll_rail,message,chunk,ll_dispatch))
$(eval $(call wrong_ll_rail,spread,spread,ll_dispatch))
$(eval $(call wrong_ll_rail,gather,chunk,ll_combine ll_combine_fp8 ll_combine_log10))
# $(call wrong_simt,name)
define wrong_simt
$(B)/awake/simt_$(1): $(SIMT_OBJ) $(OBJ)/$(1)/test/simt_kernels.o $(HELP_LIB) $(STATIC)
	$$(call program,$$(filter %.o,$$^) $(HELP_LIB))
endef
$(foreach name,relaxed no_fence vote early_fence other_proxy,$(eval $(call wrong_simt,$(name))))
endif

# ---- Tests -------------------------------------------------------------------------------------------------

# Per cent of the cases and shapes, and seconds a program may take.
SCALE_release := 100
SCALE_asan := 30
SCALE_tsan := 10
TEST_TIMEOUT ?= 540
# Programs at once; tests that measure deadlines expect a processor of their own.
TEST_JOBS ?= $(shell nproc 2>/dev/null || echo 1)

test_environment = TERN_TEST_SCALE='$(or $(TERN_TEST_SCALE),$(SCALE_$(VARIANT)))' TERN_BUILD='$(B)' \
    CC='$(CC)' CXX='$(CXX)' MAKE='$(MAKE)' TERN_VARIANT='$(VARIANT)' TERN_CUDA='$(HAVE_CUDA)' \
    TERN_CUDA_LIBDIR='$(if $(CUDART),$(patsubst %/,%,$(dir $(CUDART))))'

check: report all $(TESTS) $(call cu_obj,$(TEST_KERNEL))
	@$(test_environment) test/run -j $(TEST_JOBS) -t $(TEST_TIMEOUT) $(TESTS) $(SCRIPTS)

check-programs: report $(TESTS) $(TOOLS) $(EXAMPLES) $(AWAKE)
	@$(test_environment) test/run -j $(TEST_JOBS) -t $(TEST_TIMEOUT) $(TESTS) $(if $(AWAKE),test/tsan_awake.sh)

check-asan:
	@$(MAKE) --no-print-directory VARIANT=asan CUDA=0 check-programs

check-tsan:
	@$(MAKE) --no-print-directory VARIANT=tsan CUDA=0 check-programs

# A line of tern-info for each usable device follows the one that says what became of CUDA.
need_gpu = $(B)/bin/tern-info 2> /dev/null | sed '1,/^machine cuda/d' | grep -q '^ *device' || \
    { echo 'make $@: there is no GPU here that Tern can use; tern-info says why' >&2; exit 2; }

# The programs that run kernels of the library, one after the other, on the GPUs of this machine.
check-gpu: report all $(TESTS)
	@$(need_gpu)
	@$(test_environment) TERN_MACHINE=cuda test/run -j 1 -t $(TEST_TIMEOUT) $(filter $(B)/test/ep_% $(B)/test/net_%,$(TESTS)) test/examples.sh

# The kernels under compute-sanitizer, which finds accesses outside memory. Skips by name what is missing.
check-memcheck: report $(TOOLS) $(TESTS)
	@$(test_environment) test/memcheck.sh

# libFuzzer comes with clang. What it finds new goes to build/fuzz/found; test/fuzz/decode is only read.
FUZZ_SRC := test/fuzz/decode_fuzz.c test/wqe_bytes.c src/net/nic_refusal.c
SECONDS  ?= 60

build/fuzz/decode: $(FUZZ_SRC) $(wildcard src/net/*.h src/simt/*.h test/wqe_bytes.h)
	$(call say,FUZZ,$@)
	@mkdir -p $(@D)/found
	$(Q)clang -std=gnu11 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Iinclude -Isrc \
	    $(FUZZ_SRC) -o $@

fuzz:
	@command -v clang > /dev/null || { echo 'make $@: there is no clang' >&2; exit 2; }
	@$(MAKE) --no-print-directory build/fuzz/decode
	build/fuzz/decode -max_total_time=$(SECONDS) -timeout=10 -max_len=1024 -artifact_prefix=build/fuzz/ \
	    build/fuzz/found test/fuzz/decode

demo: report $(BENCH)
	@$(B)/bin/tern-bench demo

bench: report $(BENCH)
	@$(B)/bin/tern-bench wire
	@$(B)/bin/tern-bench ep
	@$(B)/bin/tern-bench ll

# ---- Installation ------------------------------------------------------------------------------------------

LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
BINDIR     ?= $(PREFIX)/bin
# tern-bench looks for its data in ../share/tern/data beside its own folder.
DATADIR    := $(PREFIX)/share/tern/data
DOCDIR     ?= $(PREFIX)/share/doc/tern
CMAKEDIR   := $(LIBDIR)/cmake/Tern
PCDIR      := $(LIBDIR)/pkgconfig
INSTALL    ?= install
INCLUDE_FROM_LIB = $(shell realpath -m --relative-to=$(LIBDIR) $(INCLUDEDIR))
CMAKE_LIBS = $(patsubst -l%,%,$(TERN_LIBS))
empty :=
space := $(empty) $(empty)
fill = sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@LIBDIR@|$(LIBDIR)|g' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|g' \
    -e 's|@VERSION@|$(VERSION)|g' -e 's|@MAJOR@|$(MAJOR)|g' \
    -e '$(if $(HAVE_CUDA),s|@CUDA_ONLY@||,/@CUDA_ONLY@/d)' -e 's|@HAVE_CUDA@|$(or $(HAVE_CUDA),0)|g' \
    -e 's|@PRIVATE_LIBS@|$(if $(HAVE_CUDA),-L$${cuda_libdir} -lcudart_static )$(TERN_LIBS)|g' \
    -e 's|@INCLUDE_FROM_LIB@|$(INCLUDE_FROM_LIB)|g' -e 's|@CMAKE_LIBS@|$(subst $(space),;,$(CMAKE_LIBS))|g'

# Installed, the dialect's headers are found by the one -I that finds tern.h.
rename_dialect = sed -E 's|^(\#include )"(simt\|net)/|\1"tern/dialect/\2/|'

# What the shell writes has the mode that its umask leaves.
WRITTEN = $(addprefix $(INCLUDEDIR)/tern/,tern_device.h $(DIALECT:src/%=dialect/%)) $(PCDIR)/tern.pc \
    $(addprefix $(CMAKEDIR)/,TernConfig.cmake TernConfigVersion.cmake)

install: all
	$(Q)$(INSTALL) -d $(addprefix $(DESTDIR),$(LIBDIR) $(INCLUDEDIR)/tern $(BINDIR) $(CMAKEDIR) $(PCDIR) \
	    $(DOCDIR) $(DATADIR))
	$(Q)$(INSTALL) -m 644 include/tern/*.h $(DESTDIR)$(INCLUDEDIR)/tern
	$(Q)for file in $(DIALECT:src/%=%); do \
	    $(INSTALL) -d $(DESTDIR)$(INCLUDEDIR)/tern/dialect/$$(dirname $$file) && \
	    $(rename_dialect) src/$$file > $(DESTDIR)$(INCLUDEDIR)/tern/dialect/$$file || exit 1; done
	$(Q)$(rename_dialect) include/tern/tern_device.h > $(DESTDIR)$(INCLUDEDIR)/tern/tern_device.h
	$(Q)$(INSTALL) -m 755 $(SHARED) $(DESTDIR)$(LIBDIR)
	$(Q)ln -sf $(notdir $(SHARED)) $(DESTDIR)$(LIBDIR)/libtern.so.$(MAJOR)
	$(Q)ln -sf $(notdir $(SHARED)) $(DESTDIR)$(LIBDIR)/libtern.so
	$(Q)$(INSTALL) -m 644 $(STATIC) $(DESTDIR)$(LIBDIR)
	$(Q)$(INSTALL) -m 755 $(TOOLS) $(BENCH) $(DESTDIR)$(BINDIR)
	$(Q)$(INSTALL) -m 644 LICENSE NOTICE README.md docs/*.md docs/*.svg $(DESTDIR)$(DOCDIR)
	$(Q)$(INSTALL) -m 644 data/README.md data/*.npy $(DESTDIR)$(DATADIR)
	$(Q)$(fill) tern.pc.in > $(DESTDIR)$(PCDIR)/tern.pc
	$(Q)$(fill) cmake/TernConfig.cmake.in > $(DESTDIR)$(CMAKEDIR)/TernConfig.cmake
	$(Q)$(fill) cmake/TernConfigVersion.cmake.in > $(DESTDIR)$(CMAKEDIR)/TernConfigVersion.cmake
	$(Q)chmod 644 $(addprefix $(DESTDIR),$(WRITTEN))
	@printf 'installed tern %s into %s\n' '$(VERSION)' '$(DESTDIR)$(PREFIX)'

uninstall:
	$(Q)rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,libtern.a libtern.so libtern.so.$(MAJOR) libtern.so.$(VERSION)) \
	    $(addprefix $(DESTDIR)$(BINDIR)/,$(notdir $(TOOLS) $(BENCH))) $(DESTDIR)$(PCDIR)/tern.pc
	$(Q)rm -rf $(addprefix $(DESTDIR),$(INCLUDEDIR)/tern $(CMAKEDIR) $(DOCDIR) $(PREFIX)/share/tern)

# ---- Python ------------------------------------------------------------------------------------------------

PYTHON ?= python3

# For use in-tree: PYTHONPATH=build/release/python. The wheel is for every Python from 3.9 on.
python: lib
	$(Q)TERN_LIBRARY=$(SHARED) $(PYTHON) setup.py -q build --build-base $(B)/python.tmp --build-lib $(B)/python

wheel: lib
	$(Q)TERN_LIBRARY=$(SHARED) $(PYTHON) -m pip wheel -q --no-deps --no-build-isolation -w $(B)/wheel .
	@ls $(B)/wheel/*.whl

clean:
	$(Q)rm -rf build

format-check:
	@if command -v clang-format > /dev/null; then \
	    clang-format --dry-run --Werror $$(find include src test bench tools examples python -name '*.[ch]'); \
	else echo 'skip format-check: there is no clang-format'; fi

help:
	@printf '%s\n' \
	'make                the library, tern-run, tern-info, tern-trace, tern-bench, the examples, into build/release' \
	'make demo           real routing through eight ranks, on GPUs if there are any, checked bit for bit' \
	'make check          all tests' \
	'make check-asan     the test programs under AddressSanitizer and UndefinedBehaviorSanitizer' \
	'make check-tsan     the test programs under ThreadSanitizer, and a proof that it is awake' \
	'make check-gpu      the test programs on the GPUs of this machine' \
	'make check-memcheck some of them under compute-sanitizer' \
	'make fuzz           the decoder of work queue entries under libFuzzer, for SECONDS=60' \
	'make bench          limits of the machine, then both modes of dispatch and combine beside them' \
	'make install        into $$(DESTDIR)$$(PREFIX); make uninstall removes it' \
	'make python         the Python package, into build/release/python, for use from there' \
	'make wheel          the same as a wheel, into build/release/wheel' \
	'make format-check   what clang-format would change' \
	'make clean' \
	'' \
	'VARIANT=trace       kernels with time stamps, for TERN_TRACE and tern-trace, into build/trace' \
	'CUDA=0              build without CUDA; CUDA=1: fail if it is not found; default: if it is found' \
	'FABRIC=0            build without libfabric; FABRIC=1: fail if its headers are not found' \
	'VERBS=0             build without RDMA NICs; VERBS=1: fail if rdma-core has no headers here' \
	'NVCC=PATH           the CUDA compiler; default: nvcc on PATH, then /usr/local/cuda/bin/nvcc' \
	'NVCC_ARCH=FLAGS     -gencode options; default: sm_80, sm_90 and PTX' \
	'CC, CXX, CFLAGS, CPPFLAGS, LDFLAGS, PREFIX, DESTDIR, LIBDIR as usual' \
	'PYTHON=PATH         the Python of make python and make wheel; default: python3' \
	'V=1                 print commands; WERROR=0: warnings do not fail the build' \
	'TEST_JOBS=N         test programs at once; TEST_TIMEOUT=SECONDS for one; TERN_TEST_SCALE=PER CENT'

-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)
