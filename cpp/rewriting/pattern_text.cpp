#include "pattern_text.h"

#include <torch/csrc/jit/frontend/schema_type_parser.h>
#include <charconv>

namespace jit_passes {
namespace {

bool isDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

bool isSpace(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

struct Name {
  std::string text;
  c10::TypePtr type = nullptr; // where the text has none
};

class GraphText {
 public:
  GraphText(const std::string& text, TextOf of) : text_(text), of_(of) {}

  TextGraph read() {
    declared_ = takeWord("graph");
    if (declared_) {
      require(take('('), "'('");
      for (const auto& name : namesUntil(')')) {
        addInput(name);
      }
      require(take(':'), "':'");
    }
    body(/*is_block=*/false);
    require(!more(), "the end");
    for (auto it = graph_->nodes().begin(); it != graph_->nodes().end(); ++it) {
      if (it->kind() == prim::Constant && !it->output()->hasUses()) { // an element of a constant list
        it.destroyCurrent();
      }
    }
    return {graph_, std::move(typed_)};
  }

 private:
  // Skips spaces and comments. Returns whether text is left.
  bool more() {
    while (at_ < text_.size() && (isSpace(text_[at_]) || text_[at_] == '#')) {
      at_ = text_[at_] == '#' ? std::min(text_.find('\n', at_), text_.size()) : at_ + 1;
    }
    return at_ < text_.size();
  }

  void require(bool fits, const std::string& wanted) const {
    const size_t end = std::min(text_.find('\n', at_), text_.size());
    TORCH_CHECK(
        fits, "expected ", wanted, " at '", text_.substr(std::min(at_, end), end - std::min(at_, end)),
        "' of\n", text_);
  }

  bool take(char c) {
    const bool found = more() && text_[at_] == c;
    at_ += found ? 1 : 0;
    return found;
  }

  bool takeWord(const std::string& word) {
    const bool found = more() && text_.compare(at_, word.size(), word) == 0;
    at_ += found ? word.size() : 0;
    return found;
  }

  std::string word() {
    const size_t start = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_' ||
                                  text_[at_] == '.' || text_.compare(at_, 2, "::") == 0)) {
      at_ += text_[at_] == ':' ? 2 : 1;
    }
    require(at_ > start, "a name");
    return text_.substr(start, at_ - start);
  }

  // The type of " : Tensor", if the text goes on with one.
  c10::TypePtr type() {
    if (!take(':')) {
      return nullptr;
    }
    more();
    const size_t start = at_;
    for (int depth = 0; at_ < text_.size() && text_[at_] != '\n'; ++at_) {
      const char c = text_[at_];
      if (depth == 0 && (c == ',' || c == ')' || c == ']' || c == '=')) {
        break;
      }
      depth += c == '(' || c == '[' ? 1 : c == ')' || c == ']' ? -1 : 0;
    }
    const auto name = text_.substr(start, at_ - start);
    try {
      torch::jit::Lexer lexer(std::make_shared<torch::jit::Source>(name));
      return torch::jit::SchemaTypeParser(
                 lexer, /*parse_complete_tensor_types=*/true, /*allow_type_vars=*/false)
          .parseType()
          .first;
    } catch (const std::exception&) {
      at_ = start;
      require(false, "a type");
      throw;
    }
  }

  std::vector<Name> namesUntil(char end) {
    std::vector<Name> names;
    while (!take(end)) {
      require(names.empty() || take(','), "',' or the end of the names");
      require(take('%'), "'%'");
      names.push_back({word()});
      names.back().type = type();
    }
    return names;
  }

  // The names in front of "=", if a line begins here.
  std::optional<std::vector<Name>> assigned() {
    const size_t start = at_;
    std::vector<Name> names;
    while (take('%')) {
      names.push_back({word()});
      names.back().type = type();
      if (take('=')) {
        return names;
      }
      if (!take(',')) {
        break;
      }
    }
    at_ = start;
    return take('=') ? std::optional<std::vector<Name>>(std::in_place) : std::nullopt;
  }

  void define(const std::string& name, Value* value) {
    TORCH_CHECK(values_.emplace(name, value).second, "%", name, " is defined twice in\n", text_);
    // PyTorch drops names that are numbers.
    value->setDebugName(std::ranges::all_of(name, isDigit) ? "#" + name : name);
  }

  Value* addInput(const Name& name) {
    Value* input = graph_->addInput()->setType(name.type ? name.type : c10::TensorType::get());
    define(name.text, input);
    if (name.type) {
      typed_.insert(input);
    }
    return input;
  }

  // Reads lines, then the results of the graph or of a block.
  void body(bool is_block) {
    Block* block = graph_->insertPoint()->owningBlock();
    const auto ends = [&] { return takeWord(is_block ? "->" : "return"); };
    bool ended = false;
    while (!(ended = ends())) {
      const auto names = assigned();
      if (!names) {
        break;
      }
      call(*names);
    }
    require(ended || !(declared_ || is_block), is_block ? "'->'" : "an operator or return");
    const bool several = take('(');
    require(several || !ended, "'('");
    for (Value* result : several ? operandsUntil(')') : std::vector<Value*>{operand()}) {
      block->registerOutput(result);
    }
  }

  std::vector<Value*> operandsUntil(char end) {
    std::vector<Value*> operands;
    while (!take(end)) {
      require(operands.empty() || take(','), "',' or the closing bracket");
      operands.push_back(operand());
    }
    return operands;
  }

  Value* operand() {
    require(more(), "an operator or a value");
    if (take('%')) {
      Name name{word()};
      const auto found = values_.find(name.text);
      if (found == values_.end()) {
        TORCH_CHECK(!declared_, "%", name.text, " is not defined in\n", text_);
        name.type = type();
        return addInput(name);
      }
      return found->second;
    }
    const size_t start = at_;
    if (const auto known = literal()) {
      return constant(*known, text_.substr(start, at_ - start));
    }
    return take('[') ? list(operandsUntil(']')) : call({{""}});
  }

  // Reads a constant, if the text goes on with one.
  std::optional<c10::IValue> literal() {
    const char c = text_[at_];
    if (c == '"') {
      const size_t start = ++at_;
      at_ = text_.find('"', at_);
      require(at_ != std::string::npos, "a text that ends");
      return text_.substr(start, at_++ - start);
    }
    if (isDigit(c) || c == '-') {
      return number();
    }
    for (const auto& [name, value] :
         {std::pair("None", c10::IValue()), {"True", c10::IValue(true)}, {"False", c10::IValue(false)}}) {
      if (takeWord(name)) {
        return value;
      }
    }
    return std::nullopt;
  }

  c10::IValue number() {
    const size_t start = at_++;
    while (at_ < text_.size() && (isDigit(text_[at_]) || text_[at_] == '.' || text_[at_] == 'e' ||
                                  ((text_[at_] == '-' || text_[at_] == '+') && text_[at_ - 1] == 'e'))) {
      ++at_;
    }
    const auto digits = text_.substr(start, at_ - start);
    const auto parsed = [&](auto value) -> c10::IValue {
      const char* end = digits.data() + digits.size();
      const auto [read, error] = std::from_chars(digits.data(), end, value);
      at_ = error == std::errc() && read == end ? at_ : start;
      require(at_ > start, "a number");
      return value;
    };
    return digits.find_first_of(".e") == std::string::npos ? parsed(int64_t{0}) : parsed(0.0);
  }

  // Equal constants are one constant in a replacement. In a pattern they stay apart, since each may match another
  // constant of the graph.
  Value* constant(const c10::IValue& value, const std::string& text) {
    const bool shared = of_ == TextOf::Replacement && graph_->insertPoint()->owningBlock() == graph_->block();
    const auto known = shared ? constants_.find(text) : constants_.end();
    if (known != constants_.end()) {
      return known->second;
    }
    Value* made = graph_->insertConstant(value);
    if (shared) {
      constants_.emplace(text, made);
    }
    return made;
  }

  // A constant list, from elements that are all constant numbers.
  static std::optional<c10::IValue> numbersOf(const std::vector<Value*>& elements) {
    std::vector<int64_t> whole;
    std::vector<double> all;
    for (const Value* element : elements) {
      const auto number = constantOf(element);
      if (!number || !(number->isInt() || number->isDouble())) {
        return std::nullopt;
      }
      all.push_back(number->toScalar().toDouble());
      if (number->isInt()) {
        whole.push_back(number->toInt());
      }
    }
    return whole.size() == all.size() ? c10::IValue(whole) : c10::IValue(all);
  }

  Value* list(const std::vector<Value*>& elements) {
    const auto numbers = of_ == TextOf::Pattern || elements.empty() ? std::nullopt : numbersOf(elements);
    const auto typed =
        std::ranges::find_if(elements, [](const Value* element) { return !isTensor(element); });
    const auto type = typed == elements.end() ? c10::TypePtr(c10::TensorType::get()) : (*typed)->type();
    return numbers ? graph_->insertConstant(*numbers)
                   : graph_->insertNode(graph_->createList(type, elements))->output();
  }

  // Reads an operator with its attributes and blocks. Its results get these names. Returns the first result.
  Value* call(const std::vector<Name>& names) {
    more();
    const auto kind = word();
    require(kind.find("::") != std::string::npos, "an operator such as aten::relu");
    std::unordered_map<std::string, c10::IValue> attributes;
    if (take('[')) {
      while (!take(']')) {
        require(attributes.empty() || take(','), "',' or ']'");
        more();
        const auto name = word();
        require(take('=') && more(), "'='");
        const auto value = take('[') ? numbersOf(operandsUntil(']')) : literal();
        require(value.has_value(), "a value");
        attributes.emplace(name, *value);
      }
    }
    require(take('('), "'('");
    const auto operands = operandsUntil(')');
    if (kind == "prim::Constant") {
      require(names.size() == 1 && names[0].type, "a constant with a type");
      Value* made = graph_->insertConstant(asType(names[0].type, attributes["value"]));
      define(names[0].text, made);
      return made;
    }
    Node* node = insert(kind, operands, names.size());
    for (const auto& [name, value] : attributes) {
      const auto key = c10::Symbol::attr(name);
      require(value.isString() || value.isInt() || value.isDouble(), "attributes that are texts or numbers");
      value.isString() ? node->s_(key, value.toStringRef())
      : value.isInt()  ? node->i_(key, value.toInt())
                       : node->f_(key, value.toDouble());
    }
    while (takeWord("block")) {
      addBlock(node);
    }
    const auto* schema = node->maybeSchema();
    for (size_t i = 0; i < names.size(); ++i) {
      const bool known = schema != nullptr && i < schema->returns().size();
      Value* output = node->output(i);
      output->setType(
          names[i].type ? names[i].type
          : known       ? schema->returns()[i].type()
                        : c10::TensorType::get());
      if (!names[i].text.empty()) {
        define(names[i].text, output);
      }
    }
    return names.empty() ? nullptr : node->output(0);
  }

  // PyTorch picks the overload by the types of operands. An input without a type counts as a tensor, and
  // aten::max(%x, %dim, %keepdim) then gets an overload with fewer results. Without the type it gets none.
  Node* insert(const std::string& kind, const std::vector<Value*>& operands, size_t results) {
    const auto make = [&] { return graph_->insertNode(graph_->create(symbol(kind), operands, results)); };
    Node* node = make();
    const auto* schema = node->maybeSchema();
    if (schema != nullptr && !schema->is_varret() && schema->returns().size() < results) {
      for (Value* operand : operands) {
        if (operand->node()->kind() == prim::Param && typed_.count(operand) == 0) {
          operand->setType(c10::AnyType::get());
        }
      }
      node->destroy();
      node = make();
    }
    return node;
  }

  void addBlock(Node* node) {
    while (isDigit(text_[at_])) {
      ++at_;
    }
    Block* block = node->addBlock();
    require(take('('), "'('");
    for (const auto& name : namesUntil(')')) {
      define(name.text, block->addInput()->setType(name.type ? name.type : c10::TensorType::get()));
    }
    require(take(':'), "':'");
    const torch::jit::WithInsertPoint guard(block);
    body(/*is_block=*/true);
  }

  static c10::IValue asType(const c10::TypePtr& type, const c10::IValue& value) {
    const bool whole = value.isInt();
    return whole && type->kind() == c10::TypeKind::BoolType    ? c10::IValue(value.toInt() != 0)
           : whole && type->kind() == c10::TypeKind::FloatType ? c10::IValue(double(value.toInt()))
                                                               : value;
  }

  const std::string& text_;
  TextOf of_;
  size_t at_ = 0;
  bool declared_ = false; // whether the text declares its inputs, graph(%x)
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
  std::unordered_set<const Value*> typed_;
  std::unordered_map<std::string, Value*> values_, constants_;
};

void checkResults(const Node* node) {
  const auto& known = torch::jit::getAllOperatorsFor(node->kind());
  if (known.empty()) {
    std::string hint;
    for (const auto symbol : torch::jit::findSimilarOperators(node->kind())) {
      hint += (hint.empty() ? "; there is " : ", ") + std::string(symbol.toQualString());
    }
    TORCH_CHECK(false, "there is no operator ", node->kind().toQualString(), hint);
  }
  const size_t taken = node->outputs().size();
  const bool gives = std::ranges::any_of(known, [&](const auto& op) {
    return op->schema().is_varret() || op->schema().returns().size() == taken;
  });
  if (!gives) {
    std::string overloads;
    for (const auto& op : known) {
      overloads += "\n  " + toString(op->schema());
    }
    TORCH_CHECK(
        false, taken, " results are taken of ", node->kind().toQualString(),
        ", which gives another number:", overloads);
  }
}

} // namespace

TextGraph readGraph(const std::string& text, const Alternatives& alternatives, TextOf of) {
  TextGraph made = GraphText(text, of).read();
  forEachNode(made.graph->block(), [&](Node* node) {
    const bool wildcard = alternatives.count(node->kind()) > 0;
    const auto space = std::string(node->kind().ns().toUnqualString());
    TORCH_CHECK(
        wildcard || space != "match", "the pattern has ", node->kind().toQualString(),
        ", and no alternatives are given for it");
    if (!wildcard && space != "prim") {
      checkResults(node);
    }
  });
  return made;
}

} // namespace jit_passes
