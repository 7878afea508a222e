import js from "@eslint/js";

export default [
  { ignores: ["**/uplot", "daemon/trackside_daemon/documents"] },
  js.configs.recommended,
  {
    rules: {
      eqeqeq: "error",
      "max-len": ["error", { code: 120 }],
      "max-lines-per-function": ["error", { max: 60, skipBlankLines: true, skipComments: true }],
      "no-nested-ternary": "error",
      "no-undef": "off", // The compiler knows the browser's names.
      "no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
      "prefer-const": ["error", { destructuring: "all" }],
    },
  },
];
