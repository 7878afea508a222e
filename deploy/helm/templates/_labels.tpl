{{- define "trackside.labels" -}}
app.kubernetes.io/name: trackside
app.kubernetes.io/part-of: trackside
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "trackside.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "trackside.config" -}}
{{ toYaml (mergeOverwrite (.Files.Get "files/trackside.yml" | fromYaml) .Values.config) }}
{{- end }}

{{- define "trackside.probe" -}}
httpGet: {path: {{ .path }}, port: metrics{{ if .root.Values.webConfig.secret }}, scheme: HTTPS{{ end }}}
{{- end }}
