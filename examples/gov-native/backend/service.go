package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"
)

const (
	// maxBody is what a request may send: a text of maxText bytes, each of them escaped.
	maxBody = 6*maxText + 1024
	// maxRequests is how many requests for records there may be at a time; others are told to come back.
	maxRequests = 32
)

// service answers requests.
type service struct {
	settings
	log      *slog.Logger
	records  *recordFile
	health   *folderCheck
	requests chan struct{} // those for records that are being answered
	writing  chan struct{} // the one that has its turn to write

	added, failed atomic.Int64 // records, for /metrics
}

func newService(s settings, log *slog.Logger) *service {
	return &service{
		settings: s, log: log, records: openRecords(s.folder, s.limit), health: newFolderCheck(s.folder),
		requests: make(chan struct{}, maxRequests), writing: make(chan struct{}, 1),
	}
}

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.about)
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /livez", s.livez)
	mux.HandleFunc("GET /metrics", s.metrics)
	mux.HandleFunc("GET /records", s.bounded(s.list))
	mux.HandleFunc("POST /records", s.bounded(s.add))
	return mux
}

func (s *service) about(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]string{"name": "gov-native", "version": version, "host": s.host, "site": s.site})
}

// healthz is what decides whether requests come here: a program that cannot keep records must not get any.
func (s *service) healthz(w http.ResponseWriter, r *http.Request) {
	if s.records.lost.Load() {
		refuse(w, http.StatusServiceUnavailable, errLost)
		return
	}
	if err := s.health.check(r.Context()); err != nil {
		refuse(w, http.StatusServiceUnavailable, err)
		return
	}
	fmt.Fprintln(w, "ok")
}

// livez is what decides whether the program is started anew. A folder that is full or cannot be written to is no reason:
// a new start does not mend it, and until somebody does, records can still be read.
func (s *service) livez(w http.ResponseWriter, _ *http.Request) {
	if s.records.lost.Load() {
		refuse(w, http.StatusServiceUnavailable, errLost)
		return
	}
	fmt.Fprintln(w, "ok")
}

func (s *service) metrics(w http.ResponseWriter, _ *http.Request) {
	size := int64(0)
	if info, err := os.Stat(s.records.path); err == nil {
		size = info.Size()
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	for _, m := range []struct {
		name, help, kind, labels string
		value                    int64
	}{
		{"build_info", "Which version this is.", "gauge", fmt.Sprintf("{version=%q}", version), 1},
		{"records_added_total", "Records that this program has kept.", "counter", "", s.added.Load()},
		{"records_failed_total", "Records that it could not keep.", "counter", "", s.failed.Load()},
		{"records_bytes", "Size of the file with all records.", "gauge", "", size},
		{"records_limit_bytes", "How large this file may become.", "gauge", "", s.limit},
	} {
		fmt.Fprintf(w, "# HELP gov_native_%s %s\n# TYPE gov_native_%[1]s %[3]s\ngov_native_%[1]s%[4]s %[5]d\n",
			m.name, m.help, m.kind, m.labels, m.value)
	}
}

// bounded lets so many requests through at a time.
func (s *service) bounded(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.requests <- struct{}{}:
			defer func() { <-s.requests }()
			next(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			refuse(w, http.StatusServiceUnavailable, errors.New("there are too many requests at the moment"))
		}
	}
}

func (s *service) list(w http.ResponseWriter, r *http.Request) {
	from, err := number(r, "from", 0, 0, 1<<62)
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	count, err := number(r, "limit", 100, 1, maxCount)
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	switch p, err := s.records.page(from, int(count)); {
	case errors.Is(err, errPosition):
		refuse(w, http.StatusBadRequest, fmt.Errorf("from=%d: %w", from, err))
	case err != nil:
		s.log.Error("reading records", "error", err)
		refuse(w, http.StatusServiceUnavailable, err)
	default:
		answer(w, http.StatusOK, p)
	}
}

// number reads a parameter of a request.
func number(r *http.Request, name string, missing, least, most int64) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return missing, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%s is %.40q: want a number from %d to %d", name, text, least, most)
	}
	return n, nil
}

func (s *service) add(w http.ResponseWriter, r *http.Request) {
	text, status, err := readText(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		refuse(w, status, err)
		return
	}
	// All that wait would otherwise hold the file open, and wait for its lock longer than their senders do.
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	case <-r.Context().Done():
		return // whoever sent it has gone, and nothing was written
	}
	added := record{ID: rand.Text(), Time: time.Now().UTC(), Host: s.host, Text: text}
	if err := s.records.add(added); err != nil {
		s.failed.Add(1)
		s.log.Error("keeping a record", "error", err)
		status := http.StatusServiceUnavailable
		if errors.Is(err, errFull) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			status = http.StatusInsufficientStorage
		}
		refuse(w, status, err)
		return
	}
	s.added.Add(1)
	answer(w, http.StatusCreated, added)
}

// readText reads the text of a new record. With an error comes the status to answer.
func readText(body io.Reader) (text string, status int, err error) {
	data, err := io.ReadAll(body)
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
		return "", http.StatusRequestEntityTooLarge, fmt.Errorf("more than %d bytes were sent", large.Limit)
	}
	if err != nil {
		return "", http.StatusBadRequest, fmt.Errorf("read what is sent: %w", err)
	}
	if !utf8.Valid(data) {
		return "", http.StatusBadRequest, errors.New("what was sent is no UTF-8")
	}
	var sent struct {
		Text string `json:"text"`
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&sent); err != nil {
		return "", http.StatusBadRequest, fmt.Errorf(`want {"text": "..."}: %w`, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return "", http.StatusBadRequest, errors.New(`want {"text": "..."}, and nothing after it`)
	}
	switch {
	case sent.Text == "":
		return "", http.StatusBadRequest, errors.New("the record has no text")
	case len(sent.Text) > maxText:
		return "", http.StatusRequestEntityTooLarge, fmt.Errorf("the text has %d bytes: want at most %d", len(sent.Text),
			maxText)
	}
	return sent.Text, 0, nil
}

func refuse(w http.ResponseWriter, status int, why error) { http.Error(w, why.Error(), status) }

// answer sends JSON. Whoever has gone by then does not learn of it.
func answer(w http.ResponseWriter, status int, content any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(content)
}
