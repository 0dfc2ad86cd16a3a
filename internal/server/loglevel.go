package server

import (
	"log/slog"
	"net/http"
)

// LogLevel is the level from which on things are logged. It is asked and set by any goroutine.
type LogLevel interface {
	String() string
	// Set changes the level. The error says which names there are.
	Set(name string) error
}

const logLevelHelp = "what is logged; PUT /loglevel?level=debug, info, warning or error changes it until the restart"

// logLevel shows the level, and changes it. A change must be a PUT: no web page can make a browser send one.
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
			writeText(w, http.StatusBadRequest, err.Error()+"\n")
			return
		}
		l.log.Warn("the log level was changed", "from", before, "to", l.level.String(), "by", r.RemoteAddr)
	case query.Has("level"):
		w.Header().Set("Allow", http.MethodPut)
		writeText(w, http.StatusMethodNotAllowed, "use PUT to change the level\n")
		return
	}
	writeText(w, http.StatusOK, l.level.String()+"\n")
}
