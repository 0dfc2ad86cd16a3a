package operator

import (
	"log/slog"
	"net/http"

	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
)

// LogLevel is the lowest level that is logged. It is used concurrently.
type LogLevel interface {
	String() string
	// Set changes the level. The error lists the names.
	Set(name string) error
}

const logLevelHelp = "the lowest level that is logged; PUT /loglevel?level=debug, info, warning or error changes it " +
	"until the next restart"

// logLevel shows and changes the level. A change must be a PUT, which no web page of another origin can send.
type logLevel struct {
	level LogLevel
	log   *slog.Logger
}

func (l *logLevel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	switch {
	case r.Method == http.MethodPut:
		before := l.level.String()
		if err := l.level.Set(query.Get("level")); err != nil {
			endpoint.WriteText(w, http.StatusBadRequest, err.Error()+"\n")
			return
		}
		who := actorOf(r.Context())
		l.log.LogAttrs(r.Context(), slog.LevelWarn, "the log level was changed",
			append(who.attrs(), slog.String("before", before), slog.String("after", l.level.String()))...)
	case query.Has("level"):
		w.Header().Set("Allow", http.MethodPut)
		endpoint.WriteText(w, http.StatusMethodNotAllowed, "use PUT to change the level\n")
		return
	}
	endpoint.WriteText(w, http.StatusOK, l.level.String()+"\n")
}
