package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// completionCommand is the subcommand that prints a script which completes command lines in a shell.
type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (*completionCommand) about() about {
	return about{
		examples: []example{
			{"bash: in ~/.bashrc", "source <(ratelimitd completion bash)"},
			{"zsh: in a folder of $fpath", "ratelimitd completion zsh > ~/.zfunc/_ratelimitd"},
			{"fish", "ratelimitd completion fish > ~/.config/fish/completions/ratelimitd.fish"},
		},
		exits: []exitCode{{0, "The script was printed."}, {2, "The command line is invalid."}},
	}
}

// Run prints the script.
func (o *completionCommand) Run(_ context.Context, s streams) error {
	_, err := io.WriteString(s.out, completionScripts[o.Shell])
	return err
}

// completing is the first word of the command line with which the scripts ask for words. The words typed so far follow,
// and the last one is the one to complete.
const completing = "__complete"

// The scripts ask the program itself, so they know every flag of the program that is installed. It prints one word per
// line, with a tab and an explanation behind it, or :files where the shell completes names of files.
var completionScripts = map[string]string{
	"bash": `# Completion of ratelimitd for bash: source <(ratelimitd completion bash)
_ratelimitd() {
  local cur=${COMP_WORDS[COMP_CWORD]} line name
  [[ $cur == = ]] && cur=
  COMPREPLY=()
  while IFS= read -r line; do
    if [[ $line == :files ]]; then
      compopt -o filenames 2>/dev/null
      while IFS= read -r name; do COMPREPLY+=("$name"); done < <(compgen -f -- "$cur")
    else
      COMPREPLY+=("${line%%$'\t'*}")
    fi
  done < <("${COMP_WORDS[0]/#\~/$HOME}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _ratelimitd ratelimitd
`,
	"zsh": `#compdef ratelimitd
# Completion of ratelimitd for zsh: ratelimitd completion zsh > DIR/_ratelimitd, where DIR is a folder of $fpath
_ratelimitd() {
  local -a found
  local line files
  for line in "${(@f)$("${words[1]/#\~/$HOME}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    case $line in
      :files) files=1 ;;
      *$'\t') found+=("${${line%$'\t'}//:/\\:}") ;;
      ?*) found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
    esac
  done
  (( $#found )) && _describe ratelimitd found
  if [[ -n $files ]]; then
    [[ $PREFIX == --*=* ]] && compset -P '*='
    _files
  fi
}
if [[ ${funcstack[1]} == _ratelimitd ]]; then _ratelimitd "$@"; else compdef _ratelimitd ratelimitd; fi
`,
	"fish": `# Completion of ratelimitd for fish: ratelimitd completion fish > ~/.config/fish/completions/ratelimitd.fish
function __ratelimitd_complete
    set -l cur (commandline -ct)
    set -l typed (commandline -opc)
    for line in ($typed[1] __complete $typed[2..] "$cur" 2>/dev/null)
        if test "$line" = :files
            set -l flag (string match -r -- '^--[^=]*=' "$cur")
            for name in (__fish_complete_path (string replace -r -- '^--[^=]*=' '' "$cur"))
                echo -- "$flag$name"
            end
        else
            echo -- $line
        end
    end
end
complete -c ratelimitd -f -a '(__ratelimitd_complete)'
`,
}

// word is a possible next word of a command line.
type word struct{ text, help string }

// printCompletions prints the words that complete the last one.
func printCompletions(to io.Writer, model *kong.Application, words []string) {
	if len(words) == 0 {
		words = []string{""}
	}
	found, files := completions(model, words)
	for _, w := range found {
		fmt.Fprintf(to, "%s\t%s\n", w.text, firstSentence(w.help))
	}
	if files {
		fmt.Fprintln(to, ":files")
	}
}

// completions returns the words that complete the last one, and whether it may be the name of a file.
func completions(model *kong.Application, words []string) (found []word, files bool) {
	typed, cur := words[:len(words)-1], words[len(words)-1]
	command, typed, chosen := commandOf(model, typed)
	if !chosen && !strings.HasPrefix(cur, "-") {
		if len(words) == 2 && words[0] == "help" {
			found = append(found, word{everySetting, "Show all flags and variables of serve."})
		}
		for _, n := range visible(model) {
			found = append(found, word{n.Name, n.Help})
		}
		return beginning(append(found, word{"help", "Show the help of a command."}), cur), false
	}
	if flag, value, prefix := valueOf(command, typed, cur); flag != nil {
		for _, c := range choices(flag.Value) {
			found = append(found, word{prefix + c, ""})
		}
		return beginning(found, prefix+value), len(found) == 0 && isFile(flag.Value)
	}
	if strings.HasPrefix(cur, "-") {
		return beginning(flagsOf(model, command, typed), cur), false
	}
	for _, p := range command.Positional {
		for _, c := range choices(p) {
			found = append(found, word{c, ""})
		}
		files = files || isFile(p)
	}
	return beginning(found, cur), files
}

// commandOf returns the command of a command line, and the words after its name. Without a name the command is serve.
func commandOf(model *kong.Application, typed []string) (command *kong.Node, rest []string, chosen bool) {
	if len(typed) > 0 && typed[0] == "help" {
		typed = typed[1:]
	}
	for _, n := range model.Children {
		if len(typed) > 0 && n.Name == typed[0] {
			return n, typed[1:], true
		}
		if command == nil || n.Name == "serve" {
			command = n
		}
	}
	return command, typed, len(typed) > 0
}

// valueOf returns the flag whose value is being typed, if there is one, and the beginning of the value. prefix is the part of
// the word before the value. bash splits --flag=value into three words: --flag, = and value.
func valueOf(command *kong.Node, typed []string, cur string) (flag *kong.Flag, value, prefix string) {
	last := func(i int) string {
		if i > len(typed) {
			return ""
		}
		return typed[len(typed)-i]
	}
	name, value := last(1), cur
	switch {
	case cur == "=":
		value = ""
	case last(1) == "=":
		name = last(2)
	case strings.HasPrefix(cur, "--") && strings.Contains(cur, "="):
		name, value, _ = strings.Cut(cur, "=")
		prefix = name + "="
	}
	for _, f := range command.Flags {
		long := "--"+f.Name == name
		if (long || f.Short != 0 && "-"+string(f.Short) == name) && !f.IsBool() {
			return f, value, prefix
		}
	}
	return nil, "", ""
}

// flagsOf returns the flags that may follow on a command line.
func flagsOf(model *kong.Application, command *kong.Node, typed []string) []word {
	found := []word{{"--help", model.HelpFlag.Help}}
	for _, f := range command.Flags {
		given := slices.ContainsFunc(typed, func(a string) bool { return a == "--"+f.Name || strings.HasPrefix(a, "--"+f.Name+"=") })
		if f.Hidden || given && !f.IsSlice() || f.Name == "help" {
			continue
		}
		found = append(found, word{"--" + f.Name, f.Help})
	}
	return found
}

// choices returns the values that a flag or an argument accepts, if they are listed.
func choices(v *kong.Value) []string {
	if v.Enum != "" {
		return v.EnumSlice()
	}
	if v.Tag.Has("oneof") {
		return strings.Split(v.Tag.Get("oneof"), ",")
	}
	return nil
}

// isFile reports whether a value is the name of a file or folder.
func isFile(v *kong.Value) bool {
	return v.Tag.PlaceHolder == "FILE" || v.Tag.PlaceHolder == "DIR" || v.Flag == nil && v.Name == "path"
}

func beginning(all []word, with string) []word {
	return slices.DeleteFunc(all, func(w word) bool { return !strings.HasPrefix(w.text, with) })
}

// firstSentence returns the first sentence of a help text, which is short enough to show next to a completion.
func firstSentence(text string) string {
	first, _, _ := strings.Cut(text, ". ")
	return strings.TrimSuffix(strings.ReplaceAll(first, "\n", " "), ".")
}
