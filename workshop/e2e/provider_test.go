package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// dialect is an API of language models: the requests and the answers that Envoy has to understand.
type dialect struct {
	name, path string

	body func(model string, most int, stream bool) any // a request for at most this many tokens; 0: without a maximum
	open func(input int) []any                         // the events at the start
	word func() any                                    // an event with a token
	last func(input, output int) []any                 // the events at the end, with the usage
	json func(input, output int) any                   // an answer without a stream
}

type object = map[string]any

// dialects are the APIs that the published Envoy has routes for.
var dialects = []dialect{{
	name: "OpenAI", path: "/v1/chat/completions",
	body: func(model string, most int, stream bool) any {
		return bounded(object{"model": model, "messages": []any{object{"role": "user", "content": "word"}}}, "max_tokens", most, stream)
	},
	word: func() any {
		return object{"object": "chat.completion.chunk", "model": "small", "choices": []any{object{"index": 0, "delta": object{"content": "word"}}}, "usage": nil}
	},
	last: func(input, output int) []any {
		return []any{object{"object": "chat.completion.chunk", "model": "small", "choices": []any{}, "usage": openAIUsage(input, output)}, nil}
	},
	json: func(input, output int) any {
		return object{"object": "chat.completion", "model": "small", "usage": openAIUsage(input, output),
			"choices": []any{object{"index": 0, "finish_reason": "stop", "message": object{"role": "assistant", "content": "word"}}}}
	},
}, {
	name: "Anthropic", path: "/v1/messages",
	body: func(model string, most int, stream bool) any {
		return bounded(object{"model": model, "messages": []any{object{"role": "user", "content": "word"}}}, "max_tokens", most, stream)
	},
	open: func(input int) []any {
		if input == 0 {
			return []any{object{"type": "message_start", "message": object{"role": "assistant", "model": "small"}}}
		}
		return []any{object{"type": "message_start", "message": object{"role": "assistant", "model": "small", "usage": object{"input_tokens": input, "output_tokens": 1}}}}
	},
	word: func() any {
		return object{"type": "content_block_delta", "index": 0, "delta": object{"type": "text_delta", "text": "word"}}
	},
	last: func(_, output int) []any {
		return []any{
			object{"type": "message_delta", "delta": object{"stop_reason": "end_turn"}, "usage": object{"output_tokens": output}},
			object{"type": "message_stop"},
		}
	},
	json: func(input, output int) any {
		return object{"type": "message", "role": "assistant", "model": "small", "content": []any{object{"type": "text", "text": "word"}},
			"usage": object{"input_tokens": input, "output_tokens": output}}
	},
}, {
	name: "Gemini", path: "/v1beta/models/small:",
	body: func(_ string, most int, _ bool) any {
		all := object{"contents": []any{object{"parts": []any{object{"text": "word"}}}}}
		if most > 0 {
			all["generationConfig"] = object{"maxOutputTokens": most}
		}
		return all
	},
	word: func() any {
		return object{"candidates": []any{object{"content": object{"role": "model", "parts": []any{object{"text": "word"}}}}}, "modelVersion": "small"}
	},
	last: func(input, output int) []any { return []any{geminiAnswer(input, output)} },
	json: func(input, output int) any { return geminiAnswer(input, output) },
}}

func bounded(all object, key string, most int, stream bool) object {
	if most > 0 {
		all[key] = most
	}
	if stream {
		all["stream"] = true
	}
	return all
}

func openAIUsage(input, output int) object {
	return object{"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output}
}

func geminiAnswer(input, output int) object {
	return object{
		"candidates": []any{object{"content": object{"role": "model", "parts": []any{object{"text": "word"}}}, "finishReason": "STOP"}}, "modelVersion": "small",
		"usageMetadata": object{"promptTokenCount": input, "candidatesTokenCount": output, "totalTokenCount": input + output},
	}
}

// at is the path of a request. Only Gemini's path depends on whether the answer is a stream.
func (d dialect) at(stream bool) string {
	switch {
	case !strings.HasSuffix(d.path, ":"):
		return d.path
	case stream:
		return d.path + "streamGenerateContent?alt=sse"
	default:
		return d.path + "generateContent"
	}
}

// request is the body of a request.
func (d dialect) request(t *testing.T, model string, most int, stream bool) string {
	t.Helper()
	text, err := json.Marshal(d.body(model, most, stream))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// event is an event as it is sent. Anthropic names its events; OpenAI ends a stream with a word that is not JSON.
func (d dialect) event(of any) string {
	if of == nil {
		return "data: [DONE]\n\n"
	}
	text, err := json.Marshal(of)
	if err != nil {
		panic(err)
	}
	name := ""
	if d.name == "Anthropic" {
		name = fmt.Sprintf("event: %s\n", of.(object)["type"])
	}
	return name + "data: " + string(text) + "\n\n"
}

// The headers x-input and x-output are an answer's tokens. x-end is how the answer ends; without it, it ends normally.
const (
	withoutUsage = "without usage" // the answer does not report the used tokens
	aborted      = "aborted"       // the provider hangs up after the first half
	left         = "left"          // the client disconnects after the first half: the provider waits for that
	failing      = "failing"       // each request gets an error
	failingOnce  = "failing once"  // the first try gets an error, a retry gets an answer
)

// provider is an upstream that serves models in all dialects: a token is one event of a stream. It sends the first half
// of a stream immediately. It sends the rest, and answers without streams, when its wave continues.
type provider struct {
	addr string

	mu sync.Mutex
	// counts the undecided requests of the wave. Clients count down those of streams, the provider all others
	decided  *sync.WaitGroup
	wave     chan struct{}  // closed when the wave continues
	attempts map[string]int // number of attempts of each request, by x-request-id
	bodies   []string
}

func startProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{attempts: make(map[string]int)}
	server := httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(server.Close)
	p.addr = server.Listener.Addr().String()
	return p
}

// begin starts a wave. None of its requests ends before all are decided.
func (p *provider) begin(decided *sync.WaitGroup) (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wave := make(chan struct{})
	p.decided, p.wave, p.bodies = decided, wave, nil
	return func() { close(wave) }
}

func (p *provider) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.attempts[r.Header.Get("X-Request-Id")]++
	attempt, wave := p.attempts[r.Header.Get("X-Request-Id")], p.wave
	p.bodies = append(p.bodies, string(body))
	stream := strings.Contains(string(body), `"stream":true`) || strings.Contains(r.URL.Path, ":stream")
	if attempt == 1 && !stream {
		p.decided.Done()
	}
	p.mu.Unlock()
	input, _ := strconv.Atoi(r.Header.Get("X-Input"))
	output, _ := strconv.Atoi(r.Header.Get("X-Output"))
	end := r.Header.Get("X-End")
	if end == left {
		wave = nil
	}
	if end == failing || end == failingOnce && attempt == 1 {
		http.Error(w, "no model is free", http.StatusServiceUnavailable)
		return
	}
	for _, d := range dialects {
		if !strings.HasPrefix(r.URL.Path, d.path) {
			continue
		}
		if stream {
			d.stream(w, r, wave, input, output, end)
		} else {
			d.answer(w, r, wave, input, output, end)
		}
	}
}

// stream sends an answer as events.
func (d dialect) stream(w http.ResponseWriter, r *http.Request, wave chan struct{}, input, output int, end string) {
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(text string) {
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
	}
	reported := input
	if end == withoutUsage {
		reported = 0
	}
	send(d.half(reported, output))
	select {
	case <-wave:
	case <-r.Context().Done():
		return
	}
	if end == aborted {
		panic(http.ErrAbortHandler)
	}
	send(strings.Repeat(d.event(d.word()), output-output/2))
	if end != withoutUsage {
		for _, e := range d.last(input, output) {
			send(d.event(e))
		}
	}
}

// half is the first half of a stream.
func (d dialect) half(input, output int) string {
	text := ""
	if d.open != nil {
		for _, e := range d.open(input) {
			text += d.event(e)
		}
	}
	return text + strings.Repeat(d.event(d.word()), output/2)
}

// answer sends an answer as one JSON object.
func (d dialect) answer(w http.ResponseWriter, r *http.Request, wave chan struct{}, input, output int, end string) {
	select {
	case <-wave:
	case <-r.Context().Done():
		return
	}
	all := d.json(input, output).(object)
	if end == withoutUsage {
		delete(all, "usage")
		delete(all, "usageMetadata")
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	if end == aborted {
		text = text[:len(text)/2]
	}
	_, _ = w.Write(text)
	_ = http.NewResponseController(w).Flush()
	if end == aborted {
		panic(http.ErrAbortHandler)
	}
}
