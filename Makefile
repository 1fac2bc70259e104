# make demo       sets everything up and runs a stock CUDA program through Outboard, on a GPU if there is one; two servers behind one address
# make check      what one runs before a commit: lint, unit tests, one run of each program
# make test       every test, without a GPU
# make gpu-check  the same programs on this machine's GPU and through Outboard, compared; writes docs/results/
# make gpu-suites other people's programs and tests, on this machine's GPU and through Outboard; writes docs/results/
# make speed      programs timed on this machine's GPU and through Outboard, in turns; writes docs/results/
# make paper-remoting   the measurements of a paper on remote GPUs, on this machine's GPU; and -plots, docs/remoting.md from them
# make paper-requirements   what outboard require predicts against emulated networks, on this machine's GPU; and -page
# make paper-flow   connection tables beside others, on this machine; docs/results/paper-flow.json and the page from it
# make bench-balance   the balancer beside nftables, HAProxy and nginx, in namespaces, as root; docs/results/bench-balance.json and the page
# make pool-demo   a pool in a minute: a broken GPU is replaced by a spare, a killed manager comes back
# make pool-faults   half an hour of a pool whose processes are killed and stopped and whose links are cut; docs/results/pool-faults.json
# make page-script   the script of the pool's page, by the TypeScript compiler (node, npm)
# make bench-pool  how fast the pool's manager is; POOL_NUMBERS and the table of docs/pool.md from it
# make paper-pool  figures and tables of a paper on pools of GPUs, simulated; docs/results/paper-pool.json and the page
# make paper-pool-gpu  the same paper's programs on this machine's GPU behind an emulated PCIe (PARTS, CASES, PAPER_BUDGET_S)
# make hostile    the attacks of tests/hostile in their long form, two hours and a half; docs/results/hostile.json
# make fuzz-corpora  looks for inputs that reach new code (FUZZ_S); crates/fuzz/corpus
# make fuzz-coverage  what the fuzz targets reach of their code; docs/results/fuzz-coverage.json and docs/fuzzing.md
# make balance-soak  the balancer's tests in their long form, as root for AF_XDP, too; docs/results/balance-soak.json
# make net-soak   ten million operations of 64 threads on queues of the software adapter that lose messages; docs/results/net-soak.json
# make calls-soak  half an hour of mixed driver calls over each link, on the software device (SOAK_S, SOAK_SEED, SOAK_LINKS); docs/results/calls-soak.json
# make paper-net  figures of papers on networking that GPUs start, by the software adapter, on this machine's GPU; docs/results/paper-net.json
# make paper-net-guest  their figures that need verbs, in a guest with software RoCE; docs/results/paper-net-guest.json
# make containers the images of server and client by podman, without a registry, as root
# make bare-root  the wheel, the Debian package and Jupyter in a root that has nothing else, as root
# make net-ptx    the kernels of outboard bench net and of the adapter that is one, compiled
# make coverage   docs/coverage.md, the state of every driver call
# make samples    crates/generate/samples, samples of generated code
# make ptx-table  docs/ptx-instructions.md, the state of every instruction form
# make dist       build/packaged, the command made small, with the libraries; takes some minutes
# make wheel      build/wheel, the Python package with the command and the libraries; pip install . builds it, too
# make deb        build/outboard_VERSION_amd64.deb
# make install    the command, the libraries, the manual page and the completions, below PREFIX

CARGO ?= cargo
PREFIX ?= $(HOME)/.local
TOOLCHAIN := .toolchain/bin/python
RELEASE := target/release
DEBUG := target/debug
# What is packaged, and below how many bytes its command stays.
PACKAGED := build/packaged
COMMAND_BYTES_MAX := 15000000
CONTAINERS ?= containers
# With --again few tests that failed run a second time, which the last lines say.
TESTED := CARGO=$(CARGO) $(TOOLCHAIN) tools/tested.py
PACKAGES_SKIPPED := build/packages-skipped
# Tests of two files at a time: most wait for a server, a deadline or a process most of the time. Not those of RDMA, whose
# emulated processors take two cores.
FILES_AT_ONCE := -n 2 --dist loadfile
# By themselves: over an emulated network copies must be through within tenths of a second.
ALONE := tests/test_emulate.py tests/test_emulate_pcie.py
# Everything, with the features of dependencies that the unit tests have: for some packages alone cargo chooses fewer,
# and builds the large crates again.
BUILD_TESTED := $(CARGO) build --quiet --workspace --lib --bins --tests --examples
NAME ?= gpu-check
SPEED ?= speed
BUDGET_S ?= 280
# The seed of the order in which speed runs its rows a second time.
MIXED ?= 1
PAPER := docs/results/paper-remoting.json
PAPER_BUDGET_S ?= 900
FLOW := docs/results/paper-flow.json
FLOW_BENCH := $(CARGO) run --quiet --manifest-path crates/flow/peers/Cargo.toml --target-dir target/flow-peers
BALANCE := docs/results/bench-balance.json
POOL_PAPER := docs/results/paper-pool.json
# Next to it, where tools/paper_pool.py finds it.
POOL_RECORDINGS := docs/results/paper-pool-recordings.json
POOL_EMULATED := docs/results/paper-pool-gpu.json
POOL_NUMBERS := docs/results/2026-11-26-pool-numbers.json
REQUIREMENTS := docs/results/paper-requirements.json
RECORDINGS := recordings/h200
# Part of each suite that runs; where checkouts lie; and which suites, all without a name.
SLICE ?= 1/1
SOURCES ?= build/suites
SUITES ?=
SUITES_RESULTS ?= docs/results/gpu-suites.json
HOSTILE ?= hostile
FUZZ_S ?= 60
BALANCE_SOAK ?= balance-soak
POOL_FAULTS ?= pool-faults
NET_SOAK ?= net-soak
CALLS_SOAK ?= calls-soak
SOAK_S ?= 1800
SOAK_SEED ?= 1
SOAK_LINKS ?= shm,tcp
NET_PAPER ?= paper-net
OPERATIONS ?= 10000000
FAULTS_S ?= 1800
SEED ?= 1
# Parts (figure3,table2,...) and cases; what is not asked for stays as it is.
PARTS ?=
CASES ?=

.PHONY: demo check test room lint unit smoke loom fuzz fuzz-corpora fuzz-coverage hostile balance-soak net-soak calls-soak bare-root programs packages nvshmem instructions test-rdma gpu-check gpu-suites gpu-suites-page speed paper-remoting paper-remoting-plots paper-requirements paper-requirements-page paper-flow paper-flow-quick bench-balance bench-balance-quick paper-pool paper-pool-gpu paper-pool-quick pool-demo pool-faults page-script bench-pool build examples coverage samples ptx-table net-ptx paper-net paper-net-guest dist check-size containers install wheel deb clean

demo: build
	@$(MAKE) --no-print-directory -C examples ../build/examples/vector_add OUT=../build/examples >build/demo.log 2>&1 || { cat build/demo.log; exit 1; }
	@tools/demo.sh $(RELEASE)/outboard build/examples/vector_add

build:
	@mkdir -p build
	$(CARGO) build --release --quiet -p outboard-cli -p outboard-client -p outboard-nvml -p outboard-cupti -p outboard-nic -p outboard-net -p outboard-recorder

examples: $(TOOLCHAIN)
	@$(MAKE) --no-print-directory -C examples -j$(shell nproc)

$(TOOLCHAIN): tools/toolchain.py tools/toolchain-requirements.txt
	python3 tools/toolchain.py --quiet
	@touch $(TOOLCHAIN)

check: room lint unit smoke
	@$(TESTED) summary lint unit smoke

# The features of loom make other libraries at the places of those that programs are tested with: last.
test: room lint unit fuzz programs packages instructions paper-flow-quick bench-balance-quick paper-pool-quick test-rdma loom
	@echo "make test: lint, unit tests, loom, fuzzing, programs, Python packages, instruction counts and RDMA all passed"
	@$(TESTED) summary lint unit loom flow-loom net-loom fuzz programs alone gpu-check packages instructions bench-balance rdma

# Before minutes of building: a full disk is an error with its name.
room:
	@python3 tools/tested.py room

lint: $(TOOLCHAIN)
	$(TOOLCHAIN) -m ruff check --quiet
	$(TOOLCHAIN) -m ruff format --check --quiet
	$(CARGO) fmt --all --check
	$(TOOLCHAIN) tools/tidy.py
	$(TOOLCHAIN) tools/page_script.py check
	$(TESTED) command lint -- $(CARGO) clippy --workspace --all-targets --quiet -- -D warnings

unit: $(TOOLCHAIN)
	@tools/chromium.sh
	@tools/verbs.sh
	@tools/etcd.sh
	$(TESTED) cargo unit --again -- --workspace --quiet

# The ring of the shm link, the table that threads share, and the posting of net.cuh, in every order that threads can run.
loom: $(TOOLCHAIN)
	$(TESTED) command loom -- $(CARGO) test --quiet -p outboard-link --features loom --test loom
	$(TESTED) command flow-loom -- $(CARGO) test --quiet -p outboard-flow --features loom --lib interleavings
	$(TESTED) command net-loom -- $(CARGO) test --quiet -p outboard-net --features loom --test loom

# Every decoder, with seeded random bytes and mutations of real input; not of a release build, so that overflows and
# false assertions are found too.
fuzz: $(TOOLCHAIN)
	$(BUILD_TESTED)
	$(TESTED) command fuzz -- $(DEBUG)/outboard-fuzz --seconds 3

# The inputs that the fuzzer starts from: FUZZ_S seconds for each target, one after the other.
fuzz-corpora: $(TOOLCHAIN)
	$(TOOLCHAIN) tools/fuzz_coverage.py collect --seconds $(FUZZ_S)

# How much of their code the targets reach in so many tries; rustup's component llvm-tools.
fuzz-coverage: $(TOOLCHAIN)
	$(TOOLCHAIN) tools/fuzz_coverage.py run docs/results/fuzz-coverage.json
	$(TOOLCHAIN) tools/fuzz_coverage.py page docs/results/fuzz-coverage.json docs/fuzzing.md

# Programs that nobody relinked, over shm and tcp, on the software device; and everything that should fail.
programs: $(TOOLCHAIN) examples
	@tools/etcd.sh
	@tools/chromium.sh
	@tools/verbs.sh
	$(BUILD_TESTED)
	$(TESTED) pytest programs --again -- $(FILES_AT_ONCE) tests --ignore tests/instructions --ignore tests/packages --ignore tests/rdma $(ALONE:%=--ignore %)
	$(TESTED) pytest alone --again -- $(ALONE)
	$(TESTED) pytest gpu-check --again -- gpu-check/tests

# The attacks that `make programs` runs small, with the counts that they are promised with; PARTS chooses some.
hostile: build $(TOOLCHAIN) examples
	OUTBOARD=$(RELEASE)/outboard PYTHONPATH=tests:tests/programs $(TOOLCHAIN) tests/hostile/long.py docs/results/$(HOSTILE).json $(PARTS)

# 10,000 transfers while everything changes, and floods of SYNs; PARTS chooses some.
balance-soak: build $(TOOLCHAIN)
	OUTBOARD=$(RELEASE)/outboard PYTHONPATH=tests $(TOOLCHAIN) tests/balance/long.py docs/results/$(BALANCE_SOAK).json $(PARTS)

# A pool in namespaces; FAULTS_S seconds, of which a few are calm, by the seed SEED.
pool-faults: build $(TOOLCHAIN)
	@tools/etcd.sh
	OUTBOARD=$(RELEASE)/outboard PYTHONPATH=tests:tests/programs $(TOOLCHAIN) tests/pool/long.py docs/results/$(POOL_FAULTS).json $(FAULTS_S) $(SEED)

# Needs a GPU. With NET_PAPER_QUICK=1 and NET_PAPER_BY="outboard run --gpu URL --" it shows that all of it works without.
paper-net: $(TOOLCHAIN)
	$(CARGO) build --release --quiet -p outboard-net
	$(TOOLCHAIN) gpu-check/net.py build build/paper-net
	python3 gpu-check/net_paper.py build/paper-net --out docs/results/$(NET_PAPER).json $(if $(NET_PAPER_QUICK),--quick) --by "$(NET_PAPER_BY)"

paper-net-guest: $(TOOLCHAIN)
	$(CARGO) build --release --quiet -p outboard-net
	$(TOOLCHAIN) tests/rdma/paper_net.py docs/results/paper-net-guest.json

# The soak of tests/net/test_net_queues.py in its long form, OPERATIONS at least, by the seed SEED.
net-soak: $(TOOLCHAIN)
	$(CARGO) build --release --quiet -p outboard-net
	OUTBOARD=$(RELEASE)/outboard PYTHONPATH=tests $(TOOLCHAIN) tests/net/long.py docs/results/$(NET_SOAK).json $(OPERATIONS) $(SEED)

# The soak of tests/test_soak.py in its long form, over SOAK_LINKS at once (rdma after them, in a guest), by the seed SOAK_SEED.
calls-soak: build $(TOOLCHAIN)
	OUTBOARD=$(RELEASE)/outboard PYTHONPATH=tests:tests/rdma:tools $(TOOLCHAIN) tests/soak/long.py docs/results/$(CALLS_SOAK).json --seconds $(SOAK_S) --seed $(SOAK_SEED) --links $(SOAK_LINKS)

page-script: $(TOOLCHAIN)
	$(TOOLCHAIN) tools/page_script.py make

bare-root: wheel deb examples
	python3 tools/bare_root.py --jupyter --out docs/results/bare-root.json

# One run of each program and of each kind of mistake: what `make check` takes of `make programs`.
smoke: $(TOOLCHAIN) examples
	$(BUILD_TESTED)
	$(TESTED) pytest smoke --again -- tests --ignore tests/instructions --ignore tests/packages --ignore tests/rdma -m smoke

# Triton, numba-cuda, CuPy and PyTorch as they come from the index, 7 GB of them, on the software device. What cannot be
# installed, for want of space or of a network, is skipped, and said so at the end.
packages: $(TOOLCHAIN)
	@tools/clang.sh
	python3 tools/packages.py --skipped $(PACKAGES_SKIPPED) numba_cupy torch
	$(BUILD_TESTED)
	$(TESTED) pytest packages --again -- $(FILES_AT_ONCE) tests/packages

# NVSHMEM between two processes over the adapter in software, on the software device: minutes, so that it is not of
# `make test`.
nvshmem: $(TOOLCHAIN)
	python3 tools/packages.py --skipped $(PACKAGES_SKIPPED) torch
	$(BUILD_TESTED)
	$(TESTED) pytest nvshmem -- tests/packages/nvshmem.py

# What the hot calls cost a program, counted by callgrind; never skipped for want of valgrind.
instructions: $(TOOLCHAIN)
	@tools/valgrind.sh
	$(BUILD_TESTED)
	$(CARGO) build --release --quiet -p outboard-client -p outboard-recorder
	$(TESTED) pytest instructions -- tests/instructions

# Verbs of a real kernel with software RoCE, in guests of QEMU. Skipped, and said so at the end, only where there can be
# none.
test-rdma: $(TOOLCHAIN) examples
	$(BUILD_TESTED)
	$(TESTED) pytest rdma --again -- tests/rdma

gpu-check: build
	python3 gpu-check/run.py --outboard $(RELEASE)/outboard --out docs/results/$(NAME).json

gpu-suites: build
	python3 gpu-check/outside/build.py --sources $(SOURCES)
	python3 gpu-check/gpu_suites.py --outboard $(RELEASE)/outboard --out $(SUITES_RESULTS) --sources $(SOURCES) --slice $(SLICE) $(if $(SUITES),--suites $(SUITES))

gpu-suites-page:
	python3 gpu-check/gpu_suites.py --page $(SUITES_RESULTS) > docs/gpu-suites.md

speed: build
	python3 gpu-check/speed.py --outboard $(RELEASE)/outboard --out docs/results/$(SPEED).json --budget-s $(BUDGET_S)
	python3 gpu-check/speed.py --outboard $(RELEASE)/outboard --out docs/results/$(SPEED)-mixed.json --budget-s $(BUDGET_S) --mixed $(MIXED)

paper-remoting: build
	python3 gpu-check/paper.py --outboard $(RELEASE)/outboard --out $(PAPER) --budget-s $(PAPER_BUDGET_S) --only "$(PARTS)" --cases "$(CASES)"

paper-remoting-plots:
	python3 gpu-check/paper_plots.py $(PAPER) docs/remoting.md

# Connection tables beside others, in turns; tables of C and C++ if Debian's packages are there, or unpacked below
# FLOW_PEERS: libdpdk-dev libtsl-hopscotch-map-dev robin-map-dev libcuckoo-dev libtbb-dev liburcu-dev libabsl-dev.
paper-flow: $(TOOLCHAIN)
	@mkdir -p build
	GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776 \
		$(FLOW_BENCH) --release -- all --heap=8 >build/paper-flow.json
	@mkdir -p build/paper-flow && mv build/paper-flow.json build/paper-flow/all.json
	$(TOOLCHAIN) tools/paper_flow.py join build/paper-flow $(FLOW)
	$(TOOLCHAIN) tools/paper_flow.py page $(FLOW) docs/flow-measured.md

# Every measurement, too short for its numbers to mean anything: shows that all of them work.
paper-flow-quick: $(TOOLCHAIN)
	@mkdir -p build
	$(FLOW_BENCH) --profile quick -- all --quick >build/paper-flow-quick.json
	@$(TOOLCHAIN) tools/paper_flow.py page build/paper-flow-quick.json build/paper-flow-quick.md

# Debian's nftables, ethtool, iproute2, iperf3, wrk, haproxy, nginx-light and libnginx-mod-stream; what is missing
# leaves its rows out.
bench-balance: $(TOOLCHAIN)
	@tools/network.sh
	$(CARGO) build --release --quiet -p outboard-cli
	$(CARGO) build --release --quiet -p outboard-balance --example traffic
	$(TOOLCHAIN) tools/bench_balance.py run $(BALANCE)
	$(TOOLCHAIN) tools/bench_balance.py page $(BALANCE) docs/balance-measured.md

# Every measurement that can be made here, too short for its numbers to mean anything.
bench-balance-quick: $(TOOLCHAIN)
	@tools/network.sh
	$(BUILD_TESTED)
	OUTBOARD=$(DEBUG)/outboard TRAFFIC=$(DEBUG)/examples/traffic \
		$(TESTED) command bench-balance -- $(TOOLCHAIN) tools/bench_balance.py run build/bench-balance-quick.json --quick

paper-pool: $(TOOLCHAIN)
	@mkdir -p build
	$(CARGO) run --quiet --release -p outboard-dxpu --example paper >build/paper-pool.json
	mv build/paper-pool.json $(POOL_PAPER)
	$(CARGO) run --quiet --release -p outboard-dxpu --example recordings recordings/h200 recordings/pool >build/paper-pool-recordings.json
	mv build/paper-pool-recordings.json $(POOL_RECORDINGS)
	$(TOOLCHAIN) tools/paper_pool.py $(POOL_PAPER) docs/pool-paper.md

paper-pool-gpu: build
	python3 gpu-check/pool.py --outboard $(RELEASE)/outboard --out $(POOL_EMULATED) --budget-s $(PAPER_BUDGET_S) --only "$(PARTS)" --cases "$(CASES)"

# The results and the page are what the simulation gives today: it takes some seconds and has one result.
paper-pool-quick: $(TOOLCHAIN)
	@mkdir -p build/paper-pool
	$(BUILD_TESTED)
	$(DEBUG)/examples/paper >build/paper-pool/paper-pool.json
	@cmp build/paper-pool/paper-pool.json $(POOL_PAPER)

pool-demo: build
	@python3 tools/pool_demo.py $(RELEASE)/outboard

bench-pool: build
	@tools/etcd.sh
	$(CARGO) build --quiet --release -p outboard-manager --example pool_load
	RELEASE=$(RELEASE) python3 tools/bench_pool.py $(POOL_NUMBERS) $(PARTS)
	python3 tools/bench_pool.py page $(POOL_NUMBERS) docs/pool.md

paper-requirements: build
	python3 gpu-check/requirements.py --outboard $(RELEASE)/outboard --out $(REQUIREMENTS) --budget-s $(PAPER_BUDGET_S) --only "$(CASES)"

paper-requirements-page: build
	python3 gpu-check/requirements.py --outboard $(RELEASE)/outboard --out $(REQUIREMENTS) --recordings $(RECORDINGS) --parts predict
	python3 gpu-check/requirements_page.py $(REQUIREMENTS) docs/requirements-measured.md

# What becomes of every driver call, from the declarations that the code is generated from.
coverage:
	$(CARGO) run --quiet -p outboard-api --example coverage > docs/coverage.md

samples:
	$(CARGO) run --quiet -p outboard-generate --example samples

# What becomes of every form of every instruction: by loading it, running it, and comparing with what a GPU made of it.
ptx-table:
	@mkdir -p build
	$(CARGO) run --quiet --release -p outboard-truth -- table crates/truth/recorded/h200.zst > build/ptx-instructions.md
	mv build/ptx-instructions.md docs/ptx-instructions.md

# The kernel that the command carries; without the comments, which are a sixth of it.
net-ptx: $(TOOLCHAIN)
	.toolchain/bin/nvcc -std=c++17 -O2 -arch=compute_80 -ptx -Iinclude crates/cli/src/bench/net.cu -o build/net.ptx
	grep -v -e '^[[:space:]]*//' -e '^$$' build/net.ptx > crates/cli/src/bench/net.ptx
	.toolchain/bin/nvcc -std=c++17 -O2 -arch=compute_80 -ptx -Iinclude crates/net/device/adapter.cu -o build/adapter.ptx
	grep -v -e '^[[:space:]]*//' -e '^$$' build/adapter.ptx > crates/net/device/adapter.ptx
	.toolchain/bin/nvcc -std=c++17 -MM -Iinclude crates/net/device/adapter.cu -o build/adapter.d
	tr -s ' \\' '\n' < build/adapter.d | grep -o -e '^crates/net/.*' -e '^include/outboard/.*' | LC_ALL=C sort -u | \
		xargs sha256sum crates/net/device/adapter.ptx > crates/net/device/adapter.sums

# The command as it is packaged, and the libraries of the release build, which programs' calls pass through.
dist: build
	$(CARGO) build --profile dist --quiet -p outboard-packaged
	@mkdir -p $(PACKAGED)
	@cp $(RELEASE)/liboutboard_*.so $(PACKAGED)
	@strip --strip-unneeded -o $(PACKAGED)/outboard target/dist/outboard-packaged
	@$(MAKE) --no-print-directory check-size

# Fails if the packaged command is too large.
check-size:
	@bytes=$$(stat -c %s $(PACKAGED)/outboard) && test $$bytes -lt $(COMMAND_BYTES_MAX) || \
		{ echo "$(PACKAGED)/outboard has $$bytes bytes; below $(COMMAND_BYTES_MAX) are promised" >&2; exit 1; }

install: dist
	install -D -m 755 $(PACKAGED)/outboard $(DESTDIR)$(PREFIX)/bin/outboard
	install -D -m 755 $(PACKAGED)/liboutboard_client.so $(DESTDIR)$(PREFIX)/lib/outboard/libcuda.so.1
	install -D -m 755 $(PACKAGED)/liboutboard_nvml.so $(DESTDIR)$(PREFIX)/lib/outboard/libnvidia-ml.so.1
	install -D -m 755 $(PACKAGED)/liboutboard_cupti.so $(DESTDIR)$(PREFIX)/lib/outboard/libcupti.so.13
	install -D -m 755 $(PACKAGED)/liboutboard_recorder.so $(DESTDIR)$(PREFIX)/lib/outboard/recorder/libcuda.so.1
	install -m 755 $(PACKAGED)/liboutboard_nic.so $(PACKAGED)/liboutboard_net.so $(DESTDIR)$(PREFIX)/lib/outboard
	install -d $(DESTDIR)$(PREFIX)/include/outboard
	install -m 644 include/outboard/* $(DESTDIR)$(PREFIX)/include/outboard
	ln -sf libcuda.so.1 $(DESTDIR)$(PREFIX)/lib/outboard/recorder/libcuda.so
	ln -sf libcuda.so.1 $(DESTDIR)$(PREFIX)/lib/outboard/libcuda.so
	ln -sf libcupti.so.13 $(DESTDIR)$(PREFIX)/lib/outboard/libcupti.so
	ln -sf libnvidia-ml.so.1 $(DESTDIR)$(PREFIX)/lib/outboard/libnvidia-ml.so
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	$(PACKAGED)/outboard man > $(DESTDIR)$(PREFIX)/share/man/man1/outboard.1
	$(PACKAGED)/outboard completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/outboard

wheel: dist
	OUTBOARD_BINARIES=$(PACKAGED) python3 python/outboard_build.py build/wheel

deb: dist
	tools/deb.sh build

# The recipe of packaging/containers, built and run.
containers: wheel examples
	python3 tools/containers.py --program $(abspath build/examples/vector_add) --out docs/results/$(CONTAINERS).json

clean:
	rm -rf target build
