SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.PHONY: build programs demo release check test test-long lint bench fuzz clean

export GOTOOLCHAIN := local

# The tag, or the tag and the commit after it.
VERSION ?= $(shell git describe --tags --match 'v*' --dirty 2>/dev/null || echo v0.0.0-dev)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
# Which Go Cryptographic Module programs have, as go build takes it: off, or v1.0.0 for FIPS 140-3 (docs/standards.md).
export GOFIPS140 ?= off
FUZZTIME ?= 30s
FUZZFLAGS ?=
# How many clusters the tests have at a time. More of them only wait for two cores, and for memory.
CLUSTERS ?= 4
BIN ?= bin

# bin/ has the programs for this machine, bin/linux-*/ the static ones for nodes. boxlift-keys, which reaches keys in tokens
# and key services, is for this machine alone: it is no node's.
KEYS = CGO_ENABLED=0 go build -C cmd/boxlift-keys -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)'
build: programs
	@host=$$(go env GOOS)-$$(go env GOARCH)
	$(KEYS) -o "$$(realpath '$(BIN)')/$$host/" .
	ln -sf $$host/boxlift-keys $(BIN)/

# What carrying and installing needs: all but boxlift-keys.
programs:
	@build() { CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)' -o "$$1" ./cmd/boxlift ./cmd/boxlift-node; }
	GOOS=linux GOARCH=amd64 build $(BIN)/linux-amd64/
	GOOS=linux GOARCH=arm64 build $(BIN)/linux-arm64/
	host=$$(go env GOOS)-$$(go env GOARCH)
	[[ $$host == linux-@(amd64|arm64) ]] || build $(BIN)/$$host/
	ln -sf $$host/boxlift $$host/boxlift-node $(BIN)/

# What a release consists of, in dist/, signed where KEY names a private key, a file or the URI of one in a token or a key
# service (its password or PIN is in BOXLIFT_KEY_PASSWORD). The same commit and the same Go give the same bytes.
RELEASED ?= linux-amd64 linux-arm64
release: build
	@for platform in $(RELEASED); do
	    [[ $$platform == linux-* ]] || CGO_ENABLED=0 GOOS=$${platform%-*} GOARCH=$${platform#*-} go build -trimpath -buildvcs=false \
	        -ldflags '-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)' -o $(BIN)/$$platform/ ./cmd/boxlift
	    GOOS=$${platform%-*} GOARCH=$${platform#*-} $(KEYS) -o "$$(realpath '$(BIN)')/$$platform/" .
	done
	key='$(KEY)' programs=$$(realpath '$(BIN)') root=$$PWD released='$(RELEASED)'
	[[ -z $$key || $$key == *:* ]] || key=$$(realpath "$$key")
	commit=$$([[ -n $$(git status --porcelain) ]] || git rev-parse HEAD) # what is not committed is from no commit
	"$$programs/boxlift" man "$$programs/man"
	cd tools/release
	CGO_ENABLED=0 go run . -version '$(VERSION)' -time "$$(git log -1 --format=%ct)" -platforms "$${released// /,}" -commit "$$commit" \
	    -programs "$$programs" -documents "$$root" -manual "$$programs/man" -out "$$root/dist" $${key:+-key "$$key"}

# Locks, builds, signs, carries and installs a cluster, on hosts made for the purpose (as root). With KEEP=1 they stay up
# until Ctrl-C, and it says how to log in, to use kubectl, and to open LiteBoxd's page from this machine.
demo: programs
	@go run ./test/demo $(if $(KEEP),-keep)

# What is quick: the linter, and all tests that need no hosts, with the results of those whose code has not changed.
check:
	CGO_ENABLED=0 go tool -modfile=tools/lint/go.mod golangci-lint run ./...
	( cd tools/bounds && CGO_ENABLED=0 go run . ../.. )
	CGO_ENABLED=0 GOFLAGS="-trimpath $${GOFLAGS:-}" go test -short -p=$$(($$(nproc) + 2)) $$(go list ./... | grep -v "/test/") | { grep -v "no test files" || :; }

# The race detector lets each program sleep for a second before it ends, and tests start hundreds.
export GORACE := atexit_sleep_ms=20

# What both kinds of tests begin with: a C compiler for the race detector, and what takes long
# to compile, for this machine and for hosts, so that no test has to wait for it. Computing of others, which takes up to ten
# times as long when it is watched, is not. A package with a sync.Map may not be among it: its copy of that code, which
# nobody watches, would serve in all packages. Results are not taken from the cache: hosts, packages
# and other programs have a part in them that go does not see.
UNWATCHED := golang.org/x/crypto/scrypt golang.org/x/crypto/blowfish golang.org/x/crypto/bcrypt \
    golang.org/x/crypto/ssh/internal/bcrypt_pbkdf github.com/google/go-cmp/... github.com/santhosh-tekuri/jsonschema/v6/... \
    modernc.org/sqlite/lib modernc.org/libc github.com/klauspost/compress/... github.com/ulikunitz/xz/... go.yaml.in/yaml/... \
    crypto/internal/fips140/... math/big regexp/...
define begin_tests
	@if ! command -v gcc >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends gcc libc6-dev >/dev/null
	fi
	race=(-race $(UNWATCHED:%='-gcflags=%=-race=false')) require=
	if [ "$${BOXLIFT_REQUIRE_HOSTS:-}" = 1 ]; then
	    require=-require
	elif ! command -v gcc >/dev/null; then
	    race=(); echo 'no gcc: left out the race detector'
	fi
	# What was compiled in one clone then serves in all others.
	export GOFLAGS="-trimpath $${GOFLAGS:-}"
	# go build would link every program, and throw it away.
	go list -export -deps "$${race[@]}" ./... >/dev/null
	for architecture in amd64 arm64; do
	    CGO_ENABLED=0 GOOS=linux GOARCH=$$architecture go list -export -deps ./cmd/... >/dev/null
	done
	clusters() { BOXLIFT_CLUSTERS=$(CLUSTERS) go test "$${race[@]}" -count=1 -timeout=100m -json "$$@" ./test/e2e; }
endef

# Tests of clusters that take longer: these are killed, lose hosts and come back from backups, grow, change, are seeded in
# every way, have three servers, or are upgraded.
LONG := ^Test(Backup|Changes|Killed|LiteBoxd|LiteBoxdKilled|Rehearsal|Seeding|ThreeServers|Upgrade(Adopted|GoesBack|Minor)?|Workload)$$

# The packages whose tests take longest, in this order.
LONGEST := ./cmd/boxlift ./test/platform ./bundle/build ./install/remote ./install/kube ./install/liteboxd ./install/network \
    ./registry/push ./install ./node/ship

# All tests but the long ones. What cannot run here is named at the end; where
# BOXLIFT_REQUIRE_HOSTS=1, it fails.
test:
	$(begin_tests)
	# What tests would have to wait for is built first, where it is missing. The distribution is a module of its own; these
	# are its parts without Kubernetes. The clusters come last, and have the machine for themselves. Other tests wait for
	# much: three packages more than there are cores run at a time, and those that take longest come first, so that none
	# of them has the machine for itself at the end.
	( failed=0
	  CGO_ENABLED=0 go run ./test/prepare >&2 || failed=1
	  go test -p=$$(($$(nproc) + 3)) "$${race[@]}" -count=1 -timeout=30m -json $(LONGEST) $$(go list ./... | grep -v /test/e2e$$) || failed=1
	  ( cd test/k3s && go test -count=1 -json ./settings ./token ./images ./registries ./containerd ./balancer ./carried ./pki ./cmd/ingress ./cmd/svclb ./cmd/cilium ) || failed=1
	  ( cd test/k3s/cmd/busybox && go test -count=1 -json . ) || failed=1
	  ( cd cmd/boxlift-keys && go test -count=1 -json ./... ) || failed=1
	  ( cd tools/release && go test -count=1 -json . ) || failed=1
	  ( cd tools/vulncheck && go test -count=1 -json . ) || failed=1
	  ( cd tools/bounds && go test -count=1 -json . ) || failed=1
	  clusters -skip '$(LONG)' || failed=1
	  exit $$failed ) | CGO_ENABLED=0 go run ./test/summary $$require
	echo 'make test-long has the tests of clusters that take longer.'

# The long ones, in the same way.
test-long:
	$(begin_tests)
	CGO_ENABLED=0 go run ./test/prepare -all
	clusters -run '$(LONG)' | CGO_ENABLED=0 go run ./test/summary $$require

# govulncheck is left out, and says so, where its database does not answer within seconds. What comes last are the bounds
# of this house: how large its parts may become, and which of its rooms may import which.
lint:
	CGO_ENABLED=0 go tool -modfile=tools/lint/go.mod golangci-lint run ./...
	( cd tools/vulncheck && CGO_ENABLED=0 go run . -module ../.. )
	( cd tools/bounds && CGO_ENABLED=0 go run . ../.. )

bench:
	go run ./test/bench

# Every fuzz target for FUZZTIME. One that is executed too seldom fails.
fuzz:
	@go run ./test/fuzz -time $(FUZZTIME) $(FUZZFLAGS)

clean:
	rm -rf $(BIN) dist
