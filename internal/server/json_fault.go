package server

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// placeInJSON matches the start of protojson's errors. The space after the colon differs from build to build.
var placeInJSON = regexp.MustCompile(`^(?:proto:[ \x{a0}])?(?:syntax error )?(?:\(line (\d+):(\d+)\): )?`)

// faultOf returns the reason why protojson rejected a body, starting with the position.
func faultOf(body []byte, message protoreflect.MessageDescriptor, err error) string {
	if len(bytes.TrimSpace(body)) == 0 {
		return fmt.Sprintf("the body is empty: send a %s as JSON", message.Name())
	}
	text := strings.ToValidUTF8(err.Error(), "?")
	at := placeInJSON.FindStringSubmatch(text)
	what := text[len(at[0]):]
	if what == "unexpected EOF" {
		return "the JSON ends too early: close what is open"
	}
	const most = 100 // the rest is text of the client
	if len(what) > most {
		what = strings.ToValidUTF8(what[:most], "") + "..."
	}
	if at[1] == "" {
		return what
	}
	return fmt.Sprintf("line %s, column %s: %s", at[1], at[2], what)
}
